package cm

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Options describe the endpoint that a dial or an acceptance makes. The zero value is
// usable. Of numbers, zero is the default and a negative one is 0; one that is out of
// range is refused with [verbs.ErrRange].
type Options struct {
	// PD is the PD of the QP, on the device that the address leads to. Nil makes one
	// for this connection.
	PD *uverbs.PD
	// SharePD uses, if PD is nil, one PD for all connections of the device that ask
	// for it. They can use each other's memory regions, and so can their peers, if
	// they learn the keys.
	SharePD bool
	// Cap is the size of the QP's queues. Fields that are zero have defaults, see
	// [verbs.QPCap.WithDefaults].
	Cap verbs.QPCap
	// Polled makes CQs without a completion channel. They take less time to make and
	// can only be polled: PollWait fails.
	Polled bool
	// SendCQ and RecvCQ are CQs to share. Nil makes one each, with room for the QP's
	// requests.
	SendCQ, RecvCQ *uverbs.CQ
	// SRQ, if set, is where the QP takes its receives from.
	SRQ *uverbs.SRQ
	// SignalAll makes every send request signaled.
	SignalAll bool
	// SingleThreaded leaves out the locks of the QP and of the CQs that are made for it,
	// see [uverbs.QPOptions] and [uverbs.CQOptions]: the program promises that calls of
	// each of them do not overlap, nor do Disconnect and Close of the endpoint with them.
	// When the peer ends the connection, Done is closed, but the QP is left as it is: the
	// program moves it to the error state with its Modify, if requests are to be flushed.
	SingleThreaded bool
	// PrivateData goes to the peer, see [MaxPrivateData].
	PrivateData []byte
	// ResponderResources is the number of RDMA READs and atomics of the peer that this
	// side serves at a time, InitiatorDepth that of its own in flight. The default is
	// 16, the most 255; the side that accepts takes no more than the other offers.
	ResponderResources, InitiatorDepth int
	// RetryCount is how often a request to a peer that does not answer is repeated, at
	// most 7. The default is 6, or the dialing side's number if that is less. rxe
	// repeats without end if it is 7, which C's programs ask for: it never notices
	// that the peer is gone.
	RetryCount int
	// RNRRetryCount is how often the peer repeats a request for which this side has
	// no receive posted (rdma_connect(3)). The default and the most are 7, which means
	// without end.
	RNRRetryCount int
	// Prepare, if set, is called when the device that leads to the peer is
	// known and before the QP is made: the place to choose PD, SendCQ, RecvCQ
	// and Cap for that device. A dial that tries again calls it again, as it
	// does Setup.
	Prepare func(Route, *Options) error
	// Setup, if set, is called when the QP exists and before the peer can send: the
	// place to post receives, and to tell the peer of memory with [Endpoint.Announce].
	// If it fails, so does the dial or the acceptance, which rejects the request.
	Setup func(*Endpoint) error
	// Logger, if set, logs at level Debug how the connection is made and how it ends,
	// with the time that it took, and attempts that are repeated; at level Warn what
	// no call returns: requests that were rejected, and resources that could not be
	// released. Devices that are open for such connections log to the first of their
	// loggers, see [uverbs.Context.SetLogger].
	Logger *slog.Logger
}

// Endpoint is one end of a reliable connection, or, in the port spaces for datagrams, of
// no connection: a QP with its CQs. The program must close it. The peer may use all
// operations on the QP: what it reaches by RDMA is up to the access of the memory regions.
type Endpoint struct {
	PD     *uverbs.PD
	QP     *uverbs.QP
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ

	// PrivateData is what the peer sent along when connecting or accepting. RoCE pads it
	// with zeros, see [MaxPrivateData].
	PrivateData []byte

	// Peer is where a datagram endpoint that dialed sends to.
	Peer verbs.UDAddr

	id       *ID
	route    Route
	announce []byte // private data for the peer
	up       atomic.Bool
	shared   bool // a CQ or SRQ, whose users see what becomes of requests
	single   bool // see Options.SingleThreaded
	iwarp    bool

	journal journal
	noted   atomic.Bool // the end is in the journal

	mu      sync.Mutex
	mrs     []*uverbs.MR   // closed first
	release []func() error // in the order they were taken
	device  *device        // nil if the PD is the program's, and once released
	freed   bool

	done    chan struct{}
	ending  atomic.Bool
	endOnce sync.Once
	reason  error

	closing  sync.Mutex // held by free
	listener *Listener  // which accepted it, if one did
}

// newEndpoint makes the verbs objects for id, which it closes if it fails. The route is
// looked up if it is zero.
func newEndpoint(id *ID, route Route, opt *Options, j journal, t *Transport) (_ *Endpoint, err error) {
	e := &Endpoint{id: id, route: route, PD: opt.PD, SendCQ: opt.SendCQ, RecvCQ: opt.RecvCQ, done: make(chan struct{}), journal: j}
	defer func() {
		if err != nil {
			e.free()
		}
	}()
	if e.route == (Route{}) {
		if e.route, err = id.route(); err != nil {
			return nil, err
		}
	}
	if opt.Prepare != nil {
		prepared := *opt
		if err := opt.Prepare(e.route, &prepared); err != nil {
			return nil, err
		}
		if err := prepared.check(); err != nil {
			return nil, err
		}
		opt = &prepared
		e.PD, e.SendCQ, e.RecvCQ = opt.PD, opt.SendCQ, opt.RecvCQ
	}
	if e.PD == nil {
		if e.device, err = t.device(e.route, opt.Logger); err != nil {
			return nil, err
		}
		if opt.SharePD {
			e.PD, err = e.device.sharedPD()
		} else if e.PD, err = e.device.ctx.AllocPD(); err == nil {
			e.release = append(e.release, e.PD.Close)
		}
		if err != nil {
			return nil, err
		}
	}
	e.iwarp = e.PD.Context().Device().IWARP()
	e.single = opt.SingleThreaded
	if err := e.makeCQs(!opt.Polled, opt.Cap.WithDefaults()); err != nil {
		return nil, err
	}
	typ := verbs.RC
	if id.space.datagram() {
		typ = verbs.UD
	}
	e.QP, err = e.PD.CreateQP(uverbs.QPOptions{Type: typ, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, SRQ: opt.SRQ, Cap: opt.Cap, SignalAll: opt.SignalAll, SingleThreaded: opt.SingleThreaded})
	if err != nil {
		return nil, err
	}
	e.shared = opt.SRQ != nil || e.SendCQ == opt.SendCQ || e.RecvCQ == opt.RecvCQ
	attr, mask, err := id.initQPAttr(verbs.StateInit)
	if err != nil {
		return nil, err
	}
	if err := e.QP.Modify(attr, mask); err != nil {
		return nil, err
	}
	if typ == verbs.UD {
		if err := e.startUD(); err != nil {
			return nil, err
		}
	}
	e.announce = opt.PrivateData
	if opt.Setup != nil {
		if err := opt.Setup(e); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// makeCQs makes the CQs that there are not yet.
func (e *Endpoint) makeCQs(events bool, size verbs.QPCap) error {
	cqopt := uverbs.CQOptions{SingleThreaded: e.single}
	if events && (e.SendCQ == nil || e.RecvCQ == nil) {
		ch, err := e.PD.Context().CreateCompChannel()
		if err != nil {
			return err
		}
		e.release = append(e.release, ch.Close)
		cqopt.Channel = ch
	}
	create := func(cq **uverbs.CQ, requests int) (err error) {
		if *cq != nil {
			return nil
		}
		cqopt.Depth = requests + 1
		if e.device != nil && cqopt.Channel == nil && !e.single {
			var release func() error
			if *cq, release, err = e.device.createCQ(cqopt.Depth); err == nil {
				e.release = append(e.release, release)
			}
			return err
		}
		if *cq, err = e.PD.Context().CreateCQ(cqopt); err == nil {
			e.release = append(e.release, (*cq).Close)
		}
		return err
	}
	if err := create(&e.SendCQ, size.MaxSendWR); err != nil {
		return err
	}
	return create(&e.RecvCQ, size.MaxRecvWR)
}

// connect asks the peer for the connection.
func (e *Endpoint) connect(p ConnParam) error {
	if e.iwarp {
		return e.id.connectAside(p)
	}
	return e.id.connect(p, false)
}

// accept answers the peer that asks for the connection.
func (e *Endpoint) accept(opt *Options) error {
	if err := e.activate(opt); err != nil {
		return err
	}
	if err := e.id.accept(opt.connParam(e)); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if e.iwarp {
		e.QP.HoldSends(time.Now().Add(settle))
	}
	return nil
}

// answered takes up what the peer has answered, after which the connection is up.
func (e *Endpoint) answered(ev *Event) error {
	if ev.Type == ConnectResponse {
		if err := e.activate(nil); err != nil {
			return err
		}
		if err := e.id.establish(); err != nil {
			return err
		}
	}
	if e.PrivateData == nil {
		e.PrivateData = ev.PrivateData
	}
	e.up.Store(true)
	if e.id.space.datagram() {
		if err := e.sendTo(*ev); err != nil {
			return err
		}
	}
	e.note(slog.LevelDebug, "connection established", nil)
	return nil
}

// activate moves the QP from INIT to RTS. What the peer may do the connection
// manager of the dialing side knows only now, not when the QP went to INIT.
func (e *Endpoint) activate(accepting *Options) error {
	if e.id.space.datagram() || e.iwarp {
		return nil
	}
	attr, mask, err := e.id.initQPAttr(verbs.StateRTR)
	if err != nil {
		return err
	}
	if accepting == nil {
		init, _, err := e.id.initQPAttr(verbs.StateInit)
		if err != nil {
			return err
		}
		attr.Access = init.Access
		mask |= verbs.MaskAccess
	}
	// The kernel says 0, which is 655 ms. rxe goes on counting the time without an
	// answer meanwhile, so a message that waits for its receive ran out of retries.
	attr.MinRNRTimer = minRNRTimer
	if err := e.QP.Modify(attr, mask); err != nil {
		return err
	}
	if attr, mask, err = e.id.initQPAttr(verbs.StateRTS); err != nil {
		return err
	}
	switch {
	case accepting == nil:
	case accepting.RetryCount != 0:
		attr.RetryCount = number(accepting.RetryCount, retries)
	default:
		attr.RetryCount = min(attr.RetryCount, retries)
	}
	return e.QP.Modify(attr, mask)
}

// minRNRTimer is how long a peer waits before it tries again what found no
// receive: 0.64 ms, as uverbs.QP.Connect has it.
const minRNRTimer = 12

// retries is the most a device tries again by default.
const retries = 6

func (opt *Options) connParam(e *Endpoint) ConnParam {
	return ConnParam{
		QPNum: e.QP.Num(), SRQ: opt.SRQ != nil, PrivateData: e.announce,
		ResponderResources: number(opt.ResponderResources, rdAtomics), InitiatorDepth: number(opt.InitiatorDepth, rdAtomics),
		RetryCount: number(opt.RetryCount, retries), RNRRetryCount: number(opt.RNRRetryCount, 7),
	}
}

// rdAtomics is how many RDMA READs and atomics are in flight by default.
const rdAtomics = 16

// number is what an option stands for that has been checked.
func number(n int, zero uint8) uint8 {
	if n == 0 {
		return zero
	}
	return uint8(max(n, 0))
}

// check finds what cannot be asked for.
func (opt *Options) check() error {
	switch {
	case len(opt.PrivateData) > MaxPrivateData:
		return ErrPrivateData
	case max(opt.ResponderResources, opt.InitiatorDepth) > math.MaxUint8:
		return fmt.Errorf("ResponderResources %d, InitiatorDepth %d: %w", opt.ResponderResources, opt.InitiatorDepth, verbs.ErrRange)
	case max(opt.RetryCount, opt.RNRRetryCount) > 7:
		return fmt.Errorf("RetryCount %d, RNRRetryCount %d: %w", opt.RetryCount, opt.RNRRetryCount, verbs.ErrRange)
	}
	return nil
}

// established lets the end of the connection call e.end.
func (e *Endpoint) established() {
	e.id.follow(func(ev Event, err error) {
		if err == nil {
			err = ev.Err()
		}
		if err != nil && !e.ending.Load() {
			go e.end(err, true) // it asks the kernel, for which others' events must not wait
		}
	})
}

// end closes e.done. If flush is set it takes the QP out of service before, which flushes
// what was posted.
func (e *Endpoint) end(reason error, flush bool) {
	e.endOnce.Do(func() {
		e.ending.Store(true)
		if flush {
			if !e.single || reason == verbs.ErrClosed { // as the program called
				e.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
			}
			if e.up.Load() && !e.id.space.datagram() {
				e.id.disconnect()
			}
		}
		e.reason = reason
		close(e.done)
	})
	if e.journal.log != nil && e.up.Load() && !e.noted.Swap(true) {
		e.note(slog.LevelDebug, "connection ended", e.reason)
	}
}

// Done is closed when the connection has ended, for whatever reason. Posted
// requests complete with WCFlushErr then.
func (e *Endpoint) Done() <-chan struct{} { return e.done }

// Err returns why the connection ended: [verbs.ErrDisconnected], [verbs.ErrDeviceRemoved] or
// [verbs.ErrClosed]. It is nil while the connection is up.
func (e *Endpoint) Err() error {
	select {
	case <-e.done:
		return e.reason
	default:
		return nil
	}
}

// AllocMR makes a region of new memory as [uverbs.PD.AllocMR] does, which is
// closed with the endpoint if not before.
func (e *Endpoint) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.AllocMR(size, access, uverbs.MROptions{})
	return e.own(mr, err)
}

// RegisterMR makes a region of the caller's memory as [uverbs.PD.RegisterMR]
// does, which is closed with the endpoint if not before.
func (e *Endpoint) RegisterMR(mem []byte, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.RegisterMR(mem, access)
	return e.own(mr, err)
}

func (e *Endpoint) own(mr *uverbs.MR, err error) (*uverbs.MR, error) {
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed { // but the PD may be there for others
		mr.Close()
		return nil, fail("allocate MR of", e.RemoteAddr().String(), verbs.ErrClosed)
	}
	if len(e.mrs) == cap(e.mrs) { // a program may make many, one after the other
		e.mrs = slices.DeleteFunc(e.mrs, func(mr *uverbs.MR) bool { return mr.Bytes() == nil })
	}
	e.mrs = append(e.mrs, mr)
	return mr, nil
}

// ID is the connection as the kernel sees it. Its events are the endpoint's.
func (e *Endpoint) ID() *ID { return e.id }

// LocalAddr and RemoteAddr are the connection's ends.
func (e *Endpoint) LocalAddr() Addr  { return Addr{e.route.Local} }
func (e *Endpoint) RemoteAddr() Addr { return Addr{e.route.Remote} }

// Announce replaces [Options].PrivateData, in Options.Setup only: for what is
// known when there is a QP, such as keys of the endpoint's memory.
func (e *Endpoint) Announce(privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return fail("announce to", e.RemoteAddr().String(), ErrPrivateData)
	}
	e.announce = privateData
	return nil
}

// Disconnect ends the connection for both sides and returns. Requests that
// have not completed are flushed: let the CQ drain first.
func (e *Endpoint) Disconnect() { e.end(verbs.ErrClosed, true) }

// Close disconnects and releases the QP, the CQs that were made for it, and the
// endpoint's memory regions. The program must close the regions that it made in PD itself
// before. Requests that have not completed never will, except those whose CQ is shared:
// they are flushed, as with Disconnect.
//
// After a failure Close can be called again: it closes what is left.
func (e *Endpoint) Close() error {
	e.end(verbs.ErrClosed, e.shared) // what is flushed is seen only where something is shared
	err := e.free()
	if e.listener != nil {
		e.listener.forget(e)
	}
	return err
}

// free undoes newEndpoint. The ID is first to go, so that nothing happens to
// the QP any more, and then the QP, so that nothing happens to memory.
func (e *Endpoint) free() (err error) {
	e.closing.Lock()
	defer e.closing.Unlock()
	closed := func(f func() error) bool {
		ferr := f()
		err = errors.Join(err, ferr)
		return ferr == nil
	}
	closed(e.id.Close)
	if e.QP != nil {
		closed(e.QP.Close)
	}
	e.mu.Lock()
	e.freed = true // nothing is added to the lists below, and no memory is touched
	e.mu.Unlock()
	e.mrs = slices.DeleteFunc(e.mrs, func(mr *uverbs.MR) bool { return closed(mr.Close) })
	for i, release := range slices.Backward(e.release) {
		if closed(release) {
			e.release = slices.Delete(e.release, i, i+1)
		}
	}
	if e.device != nil { // it stays open while anything is left on it
		e.device.release(e.reason == verbs.ErrDeviceRemoved)
		e.device = nil
	}
	return err
}

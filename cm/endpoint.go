package cm

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Options contains the options of the endpoint that Dial or Accept makes. The zero value
// is usable. For a number, zero is the default and a negative value is 0; a value that is
// out of range is refused with [verbs.ErrRange].
type Options struct {
	// PD is the PD of the QP, on the device that the address leads to. Nil makes a PD
	// for this connection.
	PD *uverbs.PD
	// SharePD, if PD is nil, makes all connections of the device that set it use one PD.
	// They can use each other's memory regions, and so can their peers, if they learn the
	// keys.
	SharePD bool
	// Cap is the size of the QP's queues. Fields that are zero have defaults, see
	// [verbs.QPCap.WithDefaults].
	Cap verbs.QPCap
	// Polled makes CQs without a completion channel. They take less time to make and
	// can only be polled: PollWait fails.
	Polled bool
	// SendCQ and RecvCQ are CQs to share. If one is nil, a CQ with room for the QP's
	// requests is made instead. A first message in a RecvCQ of the program's does not make
	// Accept return if the network has lost the peer's confirmation, unless the program
	// calls [ID.Notify].
	SendCQ, RecvCQ *uverbs.CQ
	// SRQ, if set, is the queue that the QP takes its receives from.
	SRQ *uverbs.SRQ
	// SignalAll makes every send request signaled.
	SignalAll bool
	// SingleThreaded leaves out the locks of the QP and of the CQs that are made for it,
	// see [uverbs.QPOptions] and [uverbs.CQOptions]: the program must not make overlapping
	// calls on one of them, nor call Disconnect or Close of the endpoint at the same time.
	// When the peer ends the connection, Done is closed, but the QP is left as it is: to
	// flush its requests, the program moves it to the error state with its Modify.
	SingleThreaded bool
	// PrivateData is sent to the peer, see [MaxPrivateData].
	PrivateData []byte
	// ResponderResources is the number of RDMA READs and atomics of the peer that this
	// side serves at a time, InitiatorDepth that of its own in flight. The default is
	// 16, the most 255; the accepting side takes no more than the dialing side offers.
	ResponderResources, InitiatorDepth int
	// RetryCount is how often a request to a peer that does not answer is repeated, at
	// most 7. The default is 6, or the dialing side's number if that is less. With 7,
	// which C programs request, rxe repeats without end and never notices that the peer
	// is gone.
	RetryCount int
	// RNRRetryCount is how often the peer repeats a request for which this side has
	// no receive posted (rdma_connect(3)). The default and the most are 7, which means
	// without end.
	RNRRetryCount int
	// Prepare, if set, is called when the device that leads to the peer is known and
	// before the QP is made. It may set PD, SendCQ, RecvCQ and Cap for that device.
	// A dial that tries the next address of a name calls Prepare and Setup again.
	Prepare func(Route, *Options) error
	// Setup, if set, is called when the QP exists and before the peer can send. It may
	// post receives, and announce memory to the peer with [Endpoint.Announce]. If it
	// fails, Dial fails, or Accept fails and rejects the request.
	Setup func(*Endpoint) error
	// Logger, if set, logs at level Debug how the connection is made and how it ends, with
	// the time that it took, and repeated attempts; at level Warn what no call returns:
	// rejected requests, and resources that could not be released. An open device logs to
	// the first Logger of its connections, see [uverbs.Context.SetLogger].
	Logger *slog.Logger
}

// Endpoint is one end of a reliable connection, or a datagram endpoint without a connection:
// a QP with its CQs. The caller must close it. The peer may use all operations on the QP; the
// access flags of the memory regions limit what it can reach by RDMA.
type Endpoint struct {
	PD     *uverbs.PD
	QP     *uverbs.QP
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ

	// PrivateData is the private data that the peer sent when it connected or accepted.
	// RoCE pads it with zeros, see [MaxPrivateData].
	PrivateData []byte

	// Peer is the destination of a datagram endpoint that dialed, or its multicast group.
	Peer verbs.UDAddr

	id             *ID
	route          Route
	announce       []byte // private data for the peer
	up             atomic.Bool
	shared         bool // a CQ or SRQ is the program's, which may outlive the endpoint
	singleThreaded bool // see Options.SingleThreaded
	iwarp          bool
	// The most READs and atomics of the peer, and of this side, that it offers.
	resources, depth uint8

	logger    connLogger
	endLogged atomic.Bool // the end has been logged

	mu      sync.Mutex
	mrs     []*uverbs.MR   // closed first
	release []func() error // in the order of creation; called in reverse
	device  *device        // nil if the PD is the program's, and after its release
	freed   bool

	done    chan struct{}
	ending  atomic.Bool
	endOnce sync.Once
	reason  error

	closing  sync.Mutex // held by free
	detach   func()     // detaches the QP from its multicast group; nil if it is in none
	listener *Listener  // that accepted the connection, or nil
}

// newEndpoint makes the verbs objects for id, which it closes if it fails. A zero route is
// looked up.
func newEndpoint(id *ID, route Route, opt *Options, j connLogger, t *Transport) (_ *Endpoint, err error) {
	e := &Endpoint{id: id, route: route, PD: opt.PD, SendCQ: opt.SendCQ, RecvCQ: opt.RecvCQ, done: make(chan struct{}), logger: j}
	defer func() {
		if err != nil {
			if route != (Route{}) && errors.Is(err, syscall.ENOMEM) {
				id.reject(rejectConsumer, []byte(memoryRejection)) // fails if this side dials
			}
			e.free()
		}
	}()
	if e.route == (Route{}) {
		if err := e.queryRoute(); err != nil {
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
	if !id.space.datagram() {
		if err := e.setDepths(opt); err != nil {
			return nil, err
		}
	}
	e.singleThreaded = opt.SingleThreaded
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
	attr, mask, err := e.qpAttr(verbs.StateInit)
	if err != nil {
		return nil, err
	}
	if err := e.QP.Modify(attr, mask); err != nil {
		return nil, err
	}
	if typ == verbs.UD {
		if err := e.activateUD(); err != nil {
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

// replaceID makes the endpoint use id, which has another local port. Its QP is still in INIT.
func (e *Endpoint) replaceID(id *ID) error {
	e.id.Close()
	e.id = id
	return e.queryRoute()
}

// queryRoute sets e.route.
func (e *Endpoint) queryRoute() (err error) {
	if e.route, err = e.id.route(); err != nil {
		return fmt.Errorf("query route: %w", err)
	}
	return nil
}

// qpAttr returns the attributes with which the QP moves to a state.
func (e *Endpoint) qpAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr, mask, err := e.id.initQPAttr(state)
	if err != nil {
		err = stateError{fmt.Errorf("query attributes for QP state %v: %w", state, err)}
	}
	return attr, mask, err
}

// makeCQs makes the CQs that the options do not contain.
func (e *Endpoint) makeCQs(events bool, size verbs.QPCap) error {
	cqopt := uverbs.CQOptions{SingleThreaded: e.singleThreaded}
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
		if e.device != nil && cqopt.Channel == nil && !e.singleThreaded {
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

// connect sends the connection request.
func (e *Endpoint) connect(p ConnParam) error {
	if e.iwarp {
		return e.id.connectBlocking(p)
	}
	return e.id.connect(p, false)
}

// accept accepts the peer's connection request.
func (e *Endpoint) accept(opt *Options) error {
	if err := e.activate(opt); err != nil {
		if _, ok := errors.AsType[*mtuError](err); ok {
			e.id.reject(rejectConsumer, []byte(mtuRejection))
		}
		return err
	}
	if err := e.id.accept(opt.connParam(e)); err != nil {
		return stateError{fmt.Errorf("accept: %w", err)}
	}
	if e.iwarp {
		e.QP.HoldSends(time.Now().Add(settleDelay))
	}
	return nil
}

// stateError is an error of a command of the connection manager that depends on the state of its ID.
type stateError struct{ error }

func (e stateError) Unwrap() error { return e.error }

// gaveUp says what EINVAL means of such a command if it accepts a request: the ID has left the state of
// one, as the peer has taken the request back. There is no event that says so: the kernel drops those of
// an ID that has not been accepted (ucma_event_handler).
func gaveUp(err error) error {
	if _, ok := errors.AsType[stateError](err); ok && errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("the peer has given up: %w", err)
	}
	return err
}

// handleEstablished handles the event that the peer's answer causes. Then the connection is up.
func (e *Endpoint) handleEstablished(ev *Event) error {
	if ev.Type == ConnectResponse {
		if err := e.activate(nil); err != nil {
			return err
		}
		if err := e.id.establish(); err != nil {
			return fmt.Errorf("confirm: %w", err)
		}
	}
	if e.PrivateData == nil {
		e.PrivateData = ev.PrivateData
	}
	e.up.Store(true)
	if e.id.space.datagram() {
		if err := e.setPeer(*ev); err != nil {
			return err
		}
	}
	e.log(slog.LevelDebug, "connection established", nil)
	return nil
}

// activate moves the QP from INIT to RTS. On the dialing side it also sets the access
// flags, which the connection manager did not know when the QP went to INIT.
func (e *Endpoint) activate(accepting *Options) error {
	if e.id.space.datagram() || e.iwarp {
		return nil
	}
	attr, mask, err := e.qpAttr(verbs.StateRTR)
	if err != nil {
		return err
	}
	if accepting == nil {
		init, _, err := e.qpAttr(verbs.StateInit)
		if err != nil {
			return err
		}
		attr.Access = init.Access
		mask |= verbs.MaskAccess
	}
	if err := e.checkRTR(&attr, accepting != nil); err != nil {
		return err
	}
	// The kernel's value is 0, which means 655 ms. rxe counts that as time without an
	// answer, so a message that waits for its receive would run out of retries.
	attr.MinRNRTimer = minRNRTimer
	if err := e.QP.Modify(attr, mask); err != nil {
		return err
	}
	if attr, mask, err = e.qpAttr(verbs.StateRTS); err != nil {
		return err
	}
	e.checkRTS(&attr)
	switch {
	case accepting == nil:
	case accepting.RetryCount != 0:
		attr.RetryCount = optionValue(accepting.RetryCount, defaultRetryCount)
	default:
		attr.RetryCount = min(attr.RetryCount, defaultRetryCount)
	}
	return e.QP.Modify(attr, mask)
}

// minRNRTimer is the time before the peer repeats a request that found no receive:
// 0.64 ms, as in uverbs.QP.Connect.
const minRNRTimer = 12

// defaultRetryCount is the default of Options.RetryCount.
const defaultRetryCount = 6

func (opt *Options) connParam(e *Endpoint) ConnParam {
	return ConnParam{
		QPNum: e.QP.Num(), SRQ: opt.SRQ != nil, PrivateData: e.announce,
		ResponderResources: e.resources, InitiatorDepth: e.depth,
		RetryCount: optionValue(opt.RetryCount, defaultRetryCount), RNRRetryCount: optionValue(opt.RNRRetryCount, 7),
	}
}

// defaultReadDepth is the default number of RDMA READs and atomics in flight.
const defaultReadDepth = 16

// optionValue returns the value of an option that check has accepted.
func optionValue(n int, zero uint8) uint8 {
	if n == 0 {
		return zero
	}
	return uint8(max(n, 0))
}

// check refuses values that are out of range.
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

// watchEvents registers a function that calls e.end when the connection ends.
func (e *Endpoint) watchEvents() {
	e.id.events.handle(func(ev Event, err error) {
		if err == nil {
			err = ev.Err()
		}
		if err != nil && !e.ending.Load() {
			go e.end(err, true) // not here: it makes system calls, and must not delay other IDs' events
		}
	})
}

// end closes e.done. If flush is set, it moves the QP to the error state before, which
// flushes posted requests.
func (e *Endpoint) end(reason error, flush bool) {
	e.endOnce.Do(func() {
		e.ending.Store(true)
		if flush {
			if !e.singleThreaded || reason == verbs.ErrClosed { // ErrClosed: the program called
				e.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
			}
			if e.up.Load() && !e.id.space.datagram() {
				e.id.disconnect()
			}
		}
		e.reason = reason
		close(e.done)
	})
	if e.logger.logger != nil && e.up.Load() && !e.endLogged.Swap(true) {
		e.log(slog.LevelDebug, "connection ended", e.reason)
	}
}

// Done returns a channel that is closed when the connection has ended. Posted
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

// AllocMR allocates a memory region, as [uverbs.PD.AllocMR] does. The region is
// closed with the endpoint if the program has not closed it before.
func (e *Endpoint) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.AllocMR(size, access, uverbs.MROptions{})
	return e.trackMR(mr, err)
}

// RegisterMR registers the caller's memory, as [uverbs.PD.RegisterMR] does. The
// region is closed with the endpoint if the program has not closed it before.
func (e *Endpoint) RegisterMR(mem []byte, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.RegisterMR(mem, access)
	return e.trackMR(mr, err)
}

func (e *Endpoint) trackMR(mr *uverbs.MR, err error) (*uverbs.MR, error) {
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed { // the PD may still exist, if it is shared
		mr.Close()
		return nil, fail("allocate MR of", e.RemoteAddr().String(), verbs.ErrClosed)
	}
	if len(e.mrs) == cap(e.mrs) { // forget closed regions before the slice grows
		e.mrs = slices.DeleteFunc(e.mrs, func(mr *uverbs.MR) bool { return mr.Bytes() == nil })
	}
	e.mrs = append(e.mrs, mr)
	return mr, nil
}

// ID returns the endpoint's ID. The endpoint consumes its events. A dial that finds its port
// in use takes another ID, after [Options].Setup.
func (e *Endpoint) ID() *ID { return e.id }

// LocalAddr and RemoteAddr return the addresses of the two ends.
func (e *Endpoint) LocalAddr() Addr  { return Addr{e.route.Local} }
func (e *Endpoint) RemoteAddr() Addr { return Addr{e.route.Remote} }

// Announce replaces [Options].PrivateData. It may only be called in Options.Setup, with
// data that exists only after the QP, such as keys of the endpoint's memory.
func (e *Endpoint) Announce(privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return fail("announce to", e.RemoteAddr().String(), ErrPrivateData)
	}
	e.announce = privateData
	return nil
}

// Disconnect ends the connection for both sides and returns. Requests that
// have not completed are flushed: wait for their completions first.
func (e *Endpoint) Disconnect() { e.end(verbs.ErrClosed, true) }

// Close disconnects and releases the QP, the CQs that were made for it, and the
// endpoint's memory regions. The program must first close the regions that it made in PD
// itself. Requests that have not completed get no completion, unless their CQ is shared:
// then they are flushed, as by Disconnect.
//
// The side that received the last message should not be the first to close: rxe completes
// a receive before it acknowledges the message, so the peer's send may fail though the
// message has arrived. Answer it, or wait for Done.
//
// On RoCE and InfiniBand a datagram reports the end to the peer. If the network loses it, the
// kernel repeats it every 4 s, but not after Close. A peer whose requests are all complete
// then waits without end, so it should have a deadline; on bad networks call Disconnect some
// seconds before Close.
//
// After a failure Close can be called again; it closes what is left.
func (e *Endpoint) Close() error {
	if e == nil {
		return verbs.ErrClosed
	}
	e.end(verbs.ErrClosed, e.shared) // flushing matters only if a CQ or SRQ is shared
	err := e.free()
	if e.listener != nil {
		e.listener.forget(e)
	}
	return err
}

// free undoes newEndpoint. It closes the ID first, so that the kernel no longer
// changes the QP, and then the QP, so that the device no longer uses memory.
func (e *Endpoint) free() (err error) {
	e.closing.Lock()
	defer e.closing.Unlock()
	closed := func(f func() error) bool {
		ferr := f()
		err = errors.Join(err, ferr)
		return ferr == nil
	}
	closed(e.id.Close)
	if e.detach != nil {
		e.detach()
		e.detach = nil
	}
	if e.QP != nil {
		closed(e.QP.Close)
	}
	e.mu.Lock()
	e.freed = true // from now on nothing is added to the lists below, and memory is not used
	e.mu.Unlock()
	e.mrs = slices.DeleteFunc(e.mrs, func(mr *uverbs.MR) bool { return closed(mr.Close) })
	for i, release := range slices.Backward(e.release) {
		if closed(release) {
			e.release = slices.Delete(e.release, i, i+1)
		}
	}
	if e.device != nil { // the device stays open while the endpoint has objects on it
		e.device.release(e.reason == verbs.ErrDeviceRemoved)
		e.device = nil
	}
	return err
}

package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// Endpoint is one end of a reliable connection, or a datagram endpoint: a QP with its CQs. The
// caller must close it. Access flags of memory regions limit what the peer reaches by RDMA.
type Endpoint struct {
	PD             *uverbs.PD
	QP             *uverbs.QP
	SendCQ, RecvCQ *uverbs.CQ
	// PrivateData is what the peer sent when it connected or accepted, see [MaxPrivateData].
	PrivateData []byte
	// Peer is the destination of a datagram endpoint that dialed, or its multicast group.
	Peer verbs.UDAddr

	id       *ID
	route    Route
	plan     plan
	iwarp    bool
	offer    verbs.ECE // of the peer
	log      connLogger
	life     life
	own      owned
	listener *Listener // that accepted the connection, or nil

	transport *Transport
	keepAlive keepAlive
	describe  atomic.Pointer[func(*ConnInfo)]
}

// life is the state of a connection.
type life struct {
	made   time.Time
	begun  atomic.Bool // a Channel has found Established, or what stands for it
	up     atomic.Bool
	upAt   time.Time // when it was established; set before up
	ending atomic.Bool
	once   sync.Once
	told   bool          // this side's DISCONNECT has told the peer
	done   chan struct{} // closed after reason is set
	reason error
	logged atomic.Bool // the end has been logged
}

// owned has the objects that an endpoint makes and releases in the end, and the private data for
// its peer.
type owned struct {
	closing sync.Mutex // held by free
	handed  bool       // the ID belongs to Transport.leaving now, which closes it
	detach  func()     // detaches the QP from its multicast group; nil if it is in none

	mu      sync.Mutex
	mrs     []*uverbs.MR   // closed first
	release []func() error // in the order of creation; called in reverse
	device  *device        // nil if the PD is the program's, and after its release
	freed   bool

	privateData []byte // for the peer
	announced   bool   // it has been sent
}

// add adds a function that releases an object, unless the endpoint is released already.
func (o *owned) add(release func() error) error {
	return o.use(func() { o.release = append(o.release, release) })
}

// use calls f while the endpoint is not released.
func (o *owned) use(f func()) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.freed {
		return verbs.ErrClosed
	}
	f()
	return nil
}

// newEndpoint plans and builds an endpoint for id, which it closes if it fails. request is the
// request that the endpoint answers, or nil. A zero route is looked up.
func newEndpoint(id *ID, route Route, request *Event, opt *Options, j connLogger, t *Transport) (*Endpoint, error) {
	e := &Endpoint{id: id, route: route, log: j, life: life{made: time.Now(), done: make(chan struct{})}, transport: t}
	built := false
	defer func() {
		if !built { // also if the program's Setup or Prepare panics
			e.end(verbs.ErrClosed, false, false) // Setup may have goroutines that wait for it
			e.free()
		}
	}()
	if err := e.build(opt, request); err != nil {
		if request != nil {
			id.rejectFor(err)
		}
		return nil, err
	}
	built = true
	t.conns.Store(e, e.route)
	return e, nil
}

// build plans the endpoint and makes its verbs objects.
func (e *Endpoint) build(opt *Options, request *Event) (err error) {
	if e.route == (Route{}) {
		if e.route, err = e.id.Route(); err != nil {
			return err
		}
	}
	if e.plan, err = newPlan(opt, e.id.space, e.route, request != nil); err != nil {
		return err
	}
	p := &e.plan
	if request != nil {
		e.PrivateData, e.offer = request.PrivateData, request.ECE
	}
	if err := e.makePD(); err != nil {
		return err
	}
	e.iwarp = e.PD.Context().Device().IWARP()
	p.Cap = bridge.LimitCap(e.PD.Context(), p.Cap, p.defaults)
	if p.typ == verbs.RC {
		if err := p.setDepths(bridge.DeviceAttr(e.PD.Context()), e.PD.Context().Device().Name, request); err != nil {
			return err
		}
	}
	if err := e.makeCQs(); err != nil {
		return err
	}
	e.QP, err = e.PD.CreateQP(uverbs.QPOptions{Type: p.typ, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, SRQ: p.SRQ, Cap: p.Cap, SignalAll: p.SignalAll, SingleThreaded: p.SingleThreaded})
	if err != nil {
		return err
	}
	bridge.OnOverrun(e.QP, func(err error) {
		if !e.life.ending.Load() {
			go e.end(err, true, true) // not here: it makes system calls
		}
	})
	attr, mask, err := e.qpAttr(verbs.StateInit)
	if err == nil {
		err = e.QP.Modify(attr, mask)
	}
	if err == nil && p.typ == verbs.UD {
		err = e.activateUD()
	}
	e.own.privateData = p.PrivateData
	if err == nil && p.Setup != nil {
		err = p.Setup(e)
	}
	return err
}

// makePD takes the program's PD, or makes one on the device of the route.
func (e *Endpoint) makePD() (err error) {
	if e.PD = e.plan.PD; e.PD != nil {
		return nil
	}
	if e.own.device, err = e.transport.device(e.route, e.plan.Logger); err != nil {
		return err
	}
	if e.plan.SharePD {
		e.PD, err = e.own.device.sharedPD()
		return err
	}
	if e.PD, err = e.own.device.ctx.AllocPD(); err == nil {
		e.own.add(e.PD.Close)
	}
	return err
}

// replaceID makes the endpoint use id, which has another local port. Its QP is still in INIT.
func (e *Endpoint) replaceID(id *ID) (err error) {
	e.id.Close()
	e.id = id
	if e.route, err = id.Route(); err == nil {
		e.transport.conns.Store(e, e.route)
	}
	return err
}

func (e *Endpoint) qpAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr, mask, err := e.id.InitQPAttr(state)
	if err != nil {
		err = stateError{err}
	}
	return attr, mask, err
}

// makeCQs makes the CQs that the options do not contain.
func (e *Endpoint) makeCQs() (err error) {
	p := &e.plan
	e.SendCQ, e.RecvCQ = p.SendCQ, p.RecvCQ
	size, kind := p.Cap.WithDefaults(), cqKind{polled: p.Polled, singleThreaded: p.SingleThreaded}
	if p.SendCQ == nil {
		kind.send = size.MaxSendWR + 1
	}
	if p.RecvCQ == nil {
		kind.recv = size.MaxRecvWR + 1
		if p.SRQ != nil {
			kind.recv = p.SRQ.Cap() + 1
		}
	}
	if kind.send == 0 && kind.recv == 0 {
		return nil
	}
	var s *cqSet
	if d := e.own.device; d != nil && !p.SingleThreaded {
		if s, err = d.cqs(kind); err == nil {
			e.own.add(func() error { return d.releaseCQs(s) })
		}
	} else if s, err = newCQSet(e.PD.Context(), kind); err == nil {
		e.own.add(s.close)
	}
	if err != nil {
		return err
	}
	e.SendCQ, e.RecvCQ = cmp.Or(p.SendCQ, s.send), cmp.Or(p.RecvCQ, s.recv)
	return nil
}

func (e *Endpoint) connect() error {
	if e.iwarp {
		return e.id.connectBlocking(e.connParam())
	}
	return e.id.connect(e.connParam(), false)
}

func (e *Endpoint) accept() error {
	if err := e.activate(); err != nil {
		if _, ok := errors.AsType[*mtuError](err); ok {
			e.id.reject([]byte(mtuRejection))
		}
		return err
	}
	if err := e.id.Accept(e.connParam()); err != nil {
		return stateError{err}
	}
	if e.iwarp {
		bridge.HoldSends(e.QP, time.Now().Add(settleDelay))
	}
	if e.id.space.datagram() { // no event follows
		e.setUp()
	}
	return nil
}

// stateError is an error of a command of the connection manager that depends on the state of its
// ID.
type stateError struct{ error }

func (e stateError) Unwrap() error { return e.error }

// explainState adds to the EINVAL of a stateError that the peer has given up: it has taken back its
// request, or its reply to ours. For a request no event reports it: the kernel drops the events of an
// ID that has not been accepted (ucma_event_handler).
func explainState(err error) error {
	if _, ok := errors.AsType[stateError](err); ok && errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("the peer has given up: %w", err)
	}
	return err
}

// setUp begins the life of an established connection.
func (e *Endpoint) setUp() {
	e.life.upAt = time.Now()
	e.life.up.Store(true)
}

// handleEstablished handles the event that makes the connection up: on the dialing side the peer's
// answer, which it confirms, on the accepting side the peer's confirmation, or Disconnected in its
// place (see awaitEstablished).
func (e *Endpoint) handleEstablished(ev *Event) error {
	if ev.Type == ConnectResponse {
		e.offer = ev.ECE
		if err := e.activate(); err != nil {
			return err
		}
		if err := e.id.Establish(); err != nil {
			return err
		}
	}
	if e.PrivateData == nil {
		e.PrivateData = ev.PrivateData
	}
	e.setUp()
	if e.id.space.datagram() {
		if err := e.setPeer(*ev); err != nil {
			return err
		}
	}
	e.logStep(slog.LevelDebug, "connection established", nil)
	e.startKeepAlive(e.plan.KeepAlive, e.test)
	return nil
}

// activate moves the QP from INIT to RTS. On the dialing side it also sets the access
// flags, which the connection manager did not know when the QP went to INIT.
func (e *Endpoint) activate() error {
	if e.plan.typ == verbs.UD || e.iwarp {
		return nil
	}
	accepting := e.plan.accepting
	attr, mask, err := e.qpAttr(verbs.StateRTR)
	if err != nil {
		return err
	}
	if !accepting {
		init, _, err := e.qpAttr(verbs.StateInit)
		if err != nil {
			return err
		}
		attr.Access = init.Access
		mask |= verbs.MaskAccess
	}
	if err := e.checkRTR(&attr, accepting); err != nil {
		return err
	}
	// The kernel's value 0 means 655 ms. rxe counts them as time without an answer, so a message
	// that waits for its receive would run out of retries.
	attr.MinRNRTimer = minRNRTimer
	attr.ECE = e.offer
	if err := e.QP.Modify(attr, mask); err != nil {
		return err
	}
	if attr, mask, err = e.qpAttr(verbs.StateRTS); err != nil {
		return err
	}
	e.checkRTS(&attr)
	switch n := e.plan.RetryCount; {
	case !accepting:
	case n != 0:
		attr.RetryCount = optionValue(n, 0)
	default:
		attr.RetryCount = min(attr.RetryCount, defaultRetryCount)
	}
	return e.QP.Modify(attr, mask)
}

// minRNRTimer is the time before the peer repeats a request that found no receive:
// 0.64 ms, as in uverbs.QP.Connect.
const minRNRTimer = 12

func (e *Endpoint) connParam() ConnParam {
	p := &e.plan
	ece := e.QP.ECE()
	if p.accepting {
		ece.VendorID = e.offer.VendorID // as librdmacm answers (ucma_copy_ece_param_to_kern_rep)
	}
	return ConnParam{
		QPNum: e.QP.Num(), SRQ: p.SRQ != nil, PrivateData: e.announce(), ECE: ece,
		ResponderResources: p.resources, InitiatorDepth: p.depth,
		RetryCount: optionValue(p.RetryCount, defaultRetryCount), RNRRetryCount: optionValue(p.RNRRetryCount, defaultRNRRetryCount),
	}
}

// watchEvents registers a function that calls e.end when the connection ends.
func (e *Endpoint) watchEvents() {
	e.id.events.handle(func(ev Event, err error) {
		if err == nil {
			err = ev.ended()
		}
		if err != nil && !e.life.ending.Load() {
			go e.end(err, true, true) // not here: it makes system calls, and must not delay other IDs' events
		}
	})
}

// ended returns why an event ends a connection that is up, or nil. Its peer rejects it if the wait for the
// confirmation ends there.
func (e *Event) ended() error {
	err := e.Err()
	if e.Type == Rejected {
		err = fmt.Errorf("%w: %w", verbs.ErrDisconnected, err)
	}
	return err
}

// end ends the connection at this side, once, and closes e.done. With flush it first moves the QP
// to the error state, which flushes posted requests. With tell it runs DISCONNECT: this tells the
// peer, or answers the DISCONNECT of the peer. Only Close may leave them out: free destroys the QP
// and has the peer told.
func (e *Endpoint) end(reason error, flush, tell bool) {
	l := &e.life
	l.once.Do(func() {
		l.ending.Store(true)
		if flush && (!e.plan.SingleThreaded || reason == verbs.ErrClosed) { // ErrClosed: the program called
			e.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		}
		if tell && l.up.Load() && e.plan.typ == verbs.RC {
			l.told = e.id.Disconnect() == nil
		}
		l.reason = reason
		close(l.done)
	})
	e.startKeepAlive(0, nil)
	if e.log.logger != nil && l.up.Load() && !l.logged.Swap(true) {
		e.logStep(slog.LevelDebug, "connection ended", l.reason)
	}
}

// Done returns a channel that is closed when the connection has ended. Requests complete with
// WCFlushErr then. On RoCE and InfiniBand a request that fails moves the queue pair to ERR and does
// not end the connection: the program that sees its completion closes the Endpoint, which the peer
// sees by its Done.
func (e *Endpoint) Done() <-chan struct{} { return e.life.done }

// Err returns why the connection ended: [verbs.ErrDisconnected], [verbs.ErrDeviceRemoved],
// [verbs.ErrClosed], or [verbs.ErrQueueFailed] if one of its CQs has overflowed (on siw perhaps
// ErrDisconnected). It returns nil before.
func (e *Endpoint) Err() error {
	select {
	case <-e.life.done:
		return e.life.reason
	default:
		return nil
	}
}

// AllocMR is [uverbs.PD.AllocMR] for a region that is closed with the endpoint at the latest.
func (e *Endpoint) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.AllocMR(size, access, uverbs.MROptions{})
	return e.trackMR(mr, err)
}

// RegisterMR is [uverbs.PD.RegisterMR] for a region that is closed with the endpoint at the latest.
func (e *Endpoint) RegisterMR(mem []byte, access verbs.Access) (*uverbs.MR, error) {
	mr, err := e.PD.RegisterMR(mem, access, uverbs.MROptions{})
	return e.trackMR(mr, err)
}

func (e *Endpoint) trackMR(mr *uverbs.MR, err error) (*uverbs.MR, error) {
	if err != nil {
		return nil, err
	}
	o := &e.own
	err = o.use(func() {
		if len(o.mrs) == cap(o.mrs) { // forget closed regions before the slice grows
			o.mrs = slices.DeleteFunc(o.mrs, func(mr *uverbs.MR) bool { return mr.Bytes() == nil })
		}
		o.mrs = append(o.mrs, mr)
	})
	if err != nil { // the PD may still exist, if it is shared
		mr.Close()
		return nil, fail("allocate MR of", e.RemoteAddr().String(), err)
	}
	return mr, nil
}

// ID returns the endpoint's ID. The endpoint consumes its events. A dial that finds its port
// in use takes another ID, after [Options].Setup.
func (e *Endpoint) ID() *ID { return e.id }

// LocalAddr and RemoteAddr return the addresses of the two ends.
func (e *Endpoint) LocalAddr() Addr  { return Addr{e.route.Local} }
func (e *Endpoint) RemoteAddr() Addr { return Addr{e.route.Remote} }

// Announce replaces [Options].PrivateData, for data that does not exist before the QP, such as
// keys. Options.Setup calls it: later it fails with an error that matches EISCONN, as the data has
// been sent.
func (e *Endpoint) Announce(privateData []byte) (err error) {
	o := &e.own
	closed := o.use(func() {
		if o.announced {
			err = fmt.Errorf("the private data has been sent, announce in Options.Setup or send a message: %w", syscall.EISCONN)
		} else if err = checkPrivateData(privateData); err == nil {
			o.privateData = privateData
		}
	})
	return fail("announce to", e.RemoteAddr().String(), cmp.Or(closed, err))
}

// announce returns the private data to send now; Announce fails from now on.
func (e *Endpoint) announce() []byte {
	e.own.mu.Lock()
	defer e.own.mu.Unlock()
	e.own.announced = true
	return e.own.privateData
}

// Disconnect ends the connection for both sides. Requests that have not completed are flushed.
func (e *Endpoint) Disconnect() { e.end(verbs.ErrClosed, true, true) }

// Close disconnects and releases the endpoint's objects. The program must first close its own
// regions in PD. Requests that have not completed get a completion only if their CQ is shared.
// After a failure Close can be called again.
//
// The side that received the last message should answer it or wait for Done: rxe completes a
// receive before it acknowledges the message, and the peer's send would fail.
//
// The network may lose the message that tells the peer. On RoCE and InfiniBand the [Transport]
// repeats it after Close, every 4 s and for a minute at most, until the peer has answered, for up
// to 64 peers at a time. Peers beyond them that have waited for a second are told once, as by a
// program that exits after Close. [Transport.Close] waits for answers before an exit.
func (e *Endpoint) Close() error {
	if e == nil {
		return verbs.ErrClosed
	}
	p := &e.plan
	// Shared queues outlive the endpoint, so its requests must complete in them: flush. The peer is
	// told by free: handOver does so, or destroying the ID.
	shared := p.SRQ != nil || p.SendCQ != nil || p.RecvCQ != nil
	e.end(verbs.ErrClosed, shared, shared && e.iwarp)
	err := e.free()
	if e.listener != nil {
		e.listener.closed(e)
	}
	return err
}

// handOver hands the ID to the transport, which tells the peer that this side has ended the
// connection and destroys the ID after the answer. It returns false if free must destroy the ID
// itself: there is nothing to tell, or destroying the ID tells the peer, as on iWARP, where TCP
// repeats it, and before the peer has confirmed the connection, unless [ID.Notify] has established
// it.
func (e *Endpoint) handOver() bool {
	l := &e.life
	return (l.up.Load() || e.id.notified.Load()) && e.plan.typ == verbs.RC && !e.iwarp &&
		e.transport.leaving.add(e.id, e.ownPort(), l.told)
}

// ownPort returns the local port if it is the ID's: an accepted connection has that of its listener.
func (e *Endpoint) ownPort() uint16 {
	if e.plan.accepting {
		return 0
	}
	return e.route.Local.Port()
}

// free undoes newEndpoint. It closes the ID first, so that the kernel no longer changes the QP, and
// then the QP, so that the device no longer uses memory. On InfiniBand and RoCE the connection
// manager does not change QPs, so the ID may live on.
func (e *Endpoint) free() (err error) {
	e.transport.conns.Delete(e)
	o := &e.own
	o.closing.Lock()
	defer o.closing.Unlock()
	closed := func(f func() error) bool {
		ferr := f()
		err = errors.Join(err, ferr)
		return ferr == nil
	}
	if o.handed = o.handed || e.handOver(); !o.handed {
		closed(e.id.Close)
	}
	if o.detach != nil {
		o.detach()
		o.detach = nil
	}
	if e.QP != nil {
		closed(e.QP.Close)
	}
	o.mu.Lock()
	o.freed = true // from now on nothing is added to the lists below, and memory is not used
	o.mu.Unlock()
	o.mrs = slices.DeleteFunc(o.mrs, func(mr *uverbs.MR) bool { return closed(mr.Close) })
	for i, release := range slices.Backward(o.release) {
		if closed(release) {
			o.release = slices.Delete(o.release, i, i+1)
		}
	}
	if o.device != nil { // the device stays open while the endpoint has objects on it
		o.device.release(e.life.reason == verbs.ErrDeviceRemoved)
		o.device = nil
	}
	return err
}

// connLogger logs the steps of a connection, with the time since its beginning. The zero
// value logs nothing and takes no time.
type connLogger struct {
	logger *slog.Logger
	start  time.Time
}

func newConnLogger(l *slog.Logger) (j connLogger) {
	if l != nil {
		j = connLogger{l, time.Now()}
	}
	return j
}

// log logs a message with the attributes that are known: device, addresses, err, and the
// time since the connection attempt began.
func (j *connLogger) log(level slog.Level, msg, device string, local, remote netip.AddrPort, err error) {
	if j.logger == nil || !j.logger.Enabled(context.Background(), level) {
		return
	}
	var attrs []slog.Attr
	add := func(known bool, key string, value any) {
		if known {
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	add(device != "", "device", device)
	add(local.IsValid(), "local", local.String())
	add(remote.IsValid(), "remote", remote.String())
	add(err != nil, "err", err)
	add(!j.start.IsZero(), "elapsed", time.Since(j.start))
	j.logger.LogAttrs(context.Background(), level, msg, attrs...)
}

// logStep logs a step of a dial before there is an endpoint.
func (j *connLogger) logStep(msg string, remote netip.AddrPort, err error) {
	j.log(slog.LevelDebug, msg, "", netip.AddrPort{}, remote, err)
}

func (e *Endpoint) logStep(level slog.Level, msg string, err error) {
	if e.log.logger == nil {
		return
	}
	device := ""
	if e.PD != nil {
		device = e.PD.Context().Device().Name
	}
	e.log.log(level, msg, device, e.route.Local, e.route.Remote, err)
}

// discard closes an endpoint that no caller has, and logs the error.
func (e *Endpoint) discard() {
	if err := e.Close(); err != nil {
		e.logStep(slog.LevelWarn, "endpoint of a failed connection cannot be closed", err)
	}
}

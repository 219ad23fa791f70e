package rmsg

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
)

// Loop is an event loop: its connections make progress only while a goroutine is in [Loop.Run] or
// [Loop.Dispatch], which also run the callbacks. Any goroutine may call all other methods, of
// connections, too. The caller of [NewLoop] must close the loop.
type Loop struct {
	opt    Options
	owned  bool            // made by loopOrNew: closed with its last listener or connection
	ctx    context.Context // done when the loop is being closed
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines that end soon after ctx ends
	files  *host.Set      // the devices' files, and the wake-up for events
	cache  cache
	counts counts

	dispatchMu sync.Mutex // held while dispatching
	work       work       // guarded by dispatchMu

	mu        sync.Mutex
	phase     atomic.Uint32 // a phase; changed with mu held
	closeErr  error
	devices   devices
	events    []event
	conns     map[uint32]*Conn
	lastID    uint32
	listeners map[*Listener]struct{}
}

// phase is how far the end of a loop has come.
type phase uint32

const (
	running  phase = iota
	closing        // Close was called, a callback panicked, or nothing uses it any more
	drained        // files is closed: no event is queued
	finished       // nothing is left to do
)

// in reports whether the loop is in a phase, or in a later one.
func (l *Loop) in(p phase) bool { return phase(l.phase.Load()) >= p }

// enter enters a phase, unless it is in a later one. The caller holds mu.
func (l *Loop) enter(p phase) {
	if !l.in(p) {
		l.phase.Store(uint32(p))
	}
}

// counts are the counters for statistics.
type counts struct {
	running             atomic.Bool  // a goroutine is in Run or Dispatch
	began               atomic.Int64 // when it began to handle events, in ns since 1970; 0 if it does not
	dispatches, wakeups atomic.Uint64
	handled             atomic.Uint64
}

// work is the working state of a dispatch.
type work struct {
	wcs     [64]verbs.WC
	pending []event // the queued events that are left, also if a callback panics
	// Results of a completion for which callbacks are due.
	sent      []*Buffer
	connected bool
	writable  bool
}

// event is work that other goroutines queue for a dispatch, which first handles all completions in
// the CQ of the connection after, if that is set.
type event struct {
	after *Conn
	do    []func()
}

// NewLoop creates a loop. It opens devices when it needs them.
func NewLoop(opt Options) (*Loop, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, fail("create message loop", "", err)
	}
	l := &Loop{opt: opt, files: host.NewSet(), conns: map[uint32]*Conn{}, listeners: map[*Listener]struct{}{}}
	l.cache.limit = opt.Cache
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.files.Wake() // so that a loop that was never dispatched has an event, see addNotRunning
	return l, nil
}

// loopOrNew returns l, or a new loop that runs until its connections and listeners have ended.
func loopOrNew(l *Loop, opt Options) (*Loop, error) {
	if l != nil {
		return l, l.check(opt)
	}
	l, err := NewLoop(opt)
	if err != nil {
		return nil, err
	}
	l.owned = true
	go l.Run(context.Background())
	return l, nil
}

// check refuses the Transport of a Dialer or ListenConfig with a loop, which has its own.
func (l *Loop) check(opt Options) error {
	if t := opt.Transport; t != nil && t != cmp.Or(l.opt.Transport, cm.DefaultTransport()) {
		return fmt.Errorf("%w: option Transport differs from that of the Loop, which counts", verbs.ErrRange)
	}
	return nil
}

// closeUnused makes Run close the loop if it is one of loopOrNew's and nothing uses it.
func (l *Loop) closeUnused() {
	l.mu.Lock()
	unused := l.owned && len(l.conns)+len(l.listeners) == 0
	l.mu.Unlock()
	if unused {
		l.startClose()
	}
}

// FD returns a file descriptor that is readable, for poll(2) and epoll(7), when Dispatch
// has something to do. With EPOLLET every event after Dispatch has returned causes an
// edge. It is valid until Close, and must only be waited on.
func (l *Loop) FD() int { return l.files.FD() }

// Dispatch waits until there are events, handles them, and returns their number. With a context
// that has ended it does not wait, for programs that wait for [Loop.FD]; then it fails with
// ctx's error if there was nothing to do. It fails with [verbs.ErrClosed] when the loop is closed.
func (l *Loop) Dispatch(ctx context.Context) (int, error) {
	return l.run(ctx, func(n int) bool { return n > 0 })
}

// Run calls Dispatch until that fails: when ctx ends, or the loop is closed.
func (l *Loop) Run(ctx context.Context) error {
	_, err := l.run(ctx, func(int) bool { return false })
	return err
}

// run waits and dispatches until enough returns true for the number of events handled.
func (l *Loop) run(ctx context.Context, enough func(int) bool) (int, error) {
	if !l.counts.running.CompareAndSwap(false, true) {
		return 0, ErrDispatching
	}
	defer l.counts.running.Store(false)
	if ctx.Done() != nil && ctx.Err() == nil {
		defer context.AfterFunc(ctx, l.files.Wake)()
	}
	n, err := l.dispatchOnce(nil)
	for err == nil && !enough(n) {
		if err := host.Ended(ctx); err != nil {
			return 0, err
		}
		ready, slept, werr := l.files.Wait()
		if werr != nil {
			return 0, verbs.ErrClosed
		}
		if slept {
			l.counts.wakeups.Add(1)
		}
		n, err = l.dispatchOnce(ready)
	}
	return n, err
}

// dispatchOnce handles pending events, and the files that a wait has found readable; another call
// may have handled them in between.
func (l *Loop) dispatchOnce(ready []host.Event) (n int, err error) {
	if l.in(closing) {
		l.finishClose()
		return 0, verbs.ErrClosed
	}
	if !l.dispatchMu.TryLock() {
		return 0, verbs.ErrClosed // Close is at work
	}
	panicked := true
	defer l.endDispatch(&panicked)
	l.counts.dispatches.Add(1)
	l.counts.began.Store(time.Now().UnixNano())
	n = l.dispatch(ready)
	l.counts.handled.Add(uint64(n))
	panicked = false
	return n, nil
}

// endDispatch unlocks dispatchMu after callbacks, and closes the loop if that has begun. A panic of one
// begins it, and is the end of callbacks.
func (l *Loop) endDispatch(panicked *bool) {
	if *panicked {
		l.opt.Callbacks = Callbacks{}
		l.startClose()
	}
	l.counts.began.Store(0)
	l.dispatchMu.Unlock()
	if l.in(closing) && !l.in(finished) {
		l.finishClose()
	}
}

// Close ends all connections and listeners immediately and releases everything except buffers
// that the program has not freed. While Dispatch runs, as in callbacks, Close returns
// immediately, and Dispatch and Run do the rest before they return. The kernel ends an iWARP
// handshake after 10 s, or minutes if no machine has the address. Close may be called again.
func (l *Loop) Close() error {
	if l == nil {
		return verbs.ErrClosed
	}
	l.startClose()
	l.finishClose()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closeErr
}

// startClose makes Run, or Close, close the loop.
func (l *Loop) startClose() {
	l.mu.Lock()
	l.enter(closing)
	l.mu.Unlock()
	l.files.Wake()
}

// finishClose does the work of Close, unless a dispatch is running, which does it afterwards.
func (l *Loop) finishClose() {
	if !l.dispatchMu.TryLock() {
		return
	}
	panicked := true
	defer l.endDispatch(&panicked)
	if l.in(finished) {
		panicked = false
		return
	}
	l.mu.Lock()
	var open []interface{ Close() error }
	for ln := range l.listeners {
		open = append(open, ln)
	}
	for _, c := range l.conns {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	l.cancel()
	l.tasks.Wait()
	if !l.in(drained) {
		l.dispatch(nil) // handle their ends
		l.mu.Lock()
		l.enter(drained)
		l.files.Close()
		l.mu.Unlock()
	}
	l.handle() // events queued in between
	l.mu.Lock()
	l.enter(finished)
	l.mu.Unlock()
	for _, d := range l.current() {
		l.detach(d, true)
	}
	panicked = false
}

// addNotRunning adds ErrNotRunning to err if no goroutine runs the loop although there are events.
func (l *Loop) addNotRunning(err error) error {
	if l.counts.running.Load() {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(closing) || len(l.files.Poll(make([]host.Event, 1))) == 0 {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrNotRunning)
}

func (l *Loop) post(after *Conn, do ...func()) {
	l.mu.Lock()
	closed := l.in(drained)
	if !closed {
		l.events = append(l.events, event{after, do})
		l.files.Wake()
	}
	l.mu.Unlock()
	if closed { // late events only release resources
		for _, f := range do {
			f()
		}
	}
}

// maxEvents is the number of events after which Dispatch returns.
const maxEvents = 4096

func (l *Loop) dispatch(ready []host.Event) (n int) {
	if ready == nil {
		var room [8]host.Event
		ready = l.files.Poll(room[:])
	}
	devices := l.current()
	for _, e := range ready {
		if e.ID == host.WakeID {
			l.files.Clear()
		}
		for _, d := range devices {
			if d.id != e.ID {
				continue
			}
			d.drain()
			if e.Failed {
				l.fail(d)
			}
		}
	}
	n = l.handle()
	for more := true; more; {
		more = false
		for _, d := range l.current() {
			for _, s := range d.cqs() {
				got := l.poll(s)
				if got == 0 && !s.armed {
					// Completions before Arm cause no event.
					if err := s.cq.Arm(false); err == nil {
						s.armed = true
						got = l.poll(s)
					}
				}
				n += got
				more = more || got > 0
			}
		}
		handled := l.handle()
		n += handled
		more = more || handled > 0
		if n >= maxEvents || l.in(closing) {
			l.files.Wake()
			break
		}
	}
	return n
}

func (l *Loop) current() []*device {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.devices.list
}

// poll handles one batch of completions.
func (l *Loop) poll(s *shard) int {
	n := s.cq.Poll(l.work.wcs[:])
	for i := range n {
		wc := &l.work.wcs[i]
		l.mu.Lock()
		c := l.conns[uint32(wc.ID>>32)]
		l.mu.Unlock()
		if c == nil {
			continue // it has ended
		}
		c.mu.Lock()
		c.complete(request(wc.ID>>24), int(wc.ID&0xffffff), wc)
		c.mu.Unlock()
		l.runCallbacks(c)
	}
	return n
}

// handle handles the events that other goroutines have queued.
func (l *Loop) handle() (n int) {
	l.mu.Lock()
	l.work.pending, l.events = append(l.work.pending, l.events...), nil
	l.mu.Unlock()
	for ; len(l.work.pending) > 0; n++ {
		e := &l.work.pending[0]
		if e.after != nil {
			l.drain(e.after.shard)
		}
		for len(e.do) > 0 {
			f := e.do[0]
			e.do = e.do[1:] // before f, which may panic
			f()
		}
		l.work.pending = l.work.pending[1:]
	}
	l.work.pending = nil
	return n
}

// drain handles all completions that a CQ has now. It marks the CQ as not armed: when siw
// flushes a request while it is posted, it disarms the CQ without an event.
func (l *Loop) drain(sh *shard) {
	if sh == nil {
		return
	}
	sh.armed = false
	for left := sh.cq.Cap(); left > 0; {
		n := l.poll(sh)
		if n == 0 {
			break
		}
		left -= n
	}
}

// request is the kind of a request. A WC's ID has it and the ID of the connection.
type request uint8

const (
	reqReceive   request = iota // index of the slot
	reqMessage                  // for the first message of inFlight
	reqRead                     // index in ring
	reqAck                      // resets ackInFlight
	reqByeAnswer                // sets byeDelivered
	reqAnnounce                 // its completion is ignored
	reqTest                     // resets testing
)

func (c *Conn) wrID(r request, index int) uint64 {
	return uint64(c.id)<<32 | uint64(r)<<24 | uint64(index)
}

// runCallbacks runs the callbacks that are due after a completion of a connection, or its end.
func (l *Loop) runCallbacks(c *Conn) {
	w, cb := &l.work, &l.opt.Callbacks
	sent, connected, writable := w.sent, w.connected, w.writable
	w.sent, w.connected, w.writable = sent[:0], false, false
	if connected {
		close(c.establishedCh)
		l.logConn(slog.LevelDebug, "connection established", c, nil)
		if cb.Established != nil {
			cb.Established(c)
		}
	}
	for i, b := range sent {
		sent[i] = nil
		cb.Sent(c, b)
	}
	if writable {
		signal(c.out.writable)
		if cb.Writable != nil {
			cb.Writable(c)
		}
	}
	for {
		c.mu.Lock()
		if !c.in.ready() || c.closed {
			c.mu.Unlock()
			return
		}
		if cb.Message == nil {
			c.mu.Unlock()
			signal(c.in.readable)
			return
		}
		b := c.in.pop()
		c.mu.Unlock()
		cb.Message(c, b)
	}
}

// signal wakes one goroutine that waits for ch now, or the next one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (l *Loop) log(level slog.Level, text string, attrs ...slog.Attr) {
	if l.opt.Logger != nil {
		l.opt.Logger.LogAttrs(context.Background(), level, text, attrs...)
	}
}

func (l *Loop) logConn(level slog.Level, text string, c *Conn, err error) {
	attrs := []slog.Attr{slog.String("peer", c.addr)}
	if c.arena != nil {
		attrs = append(attrs, slog.String("device", c.arena.dev.name))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	l.log(level, text, attrs...)
}

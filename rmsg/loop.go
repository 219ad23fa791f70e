package rmsg

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
)

// Loop is an event loop: its sockets make progress only while a goroutine runs
// [Loop.Run], [Loop.DispatchWait] or [Loop.Dispatch], which also run the callbacks. All
// other methods, and those of sockets, may be called by any goroutine. The caller of
// [NewLoop] must close the loop.
type Loop struct {
	opt    Options
	owned  bool            // made by loopOrNew: closed with its last listener or socket
	ctx    context.Context // done when the loop is being closed
	cancel context.CancelFunc
	files  *host.Set // the devices' files, and the wake-up for events
	cache  cache
	counts counts

	dispatchMu sync.Mutex // held while dispatching
	work       work       // guarded by dispatchMu

	// caller is the ID of the thread that the goroutine that runs callbacks is locked
	// to, with the number of the Dispatch in its upper half; 0 outside of callbacks.
	caller atomic.Uint64

	opening sync.Mutex     // held while a device is opened
	tasks   sync.WaitGroup // goroutines that end soon after ctx ends

	mu         sync.Mutex
	phase      atomic.Uint32 // a phase; changed with mu held
	closeErr   error
	devices    []*device // replaced, not changed
	events     []event
	sockets    map[uint32]*Socket
	lastID     uint32
	lastDevice int32
	listeners  map[*Listener]struct{}
}

// phase is how far the end of a loop has come.
type phase uint32

const (
	running  phase = iota
	closing        // Close was called, or nothing uses it any more
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

// counts are what statistics have, and what waiting calls compare.
type counts struct {
	dispatches atomic.Uint64 // starts and ends of Dispatch; odd while it runs
	running    atomic.Bool   // a goroutine is in Run or DispatchWait
	wakeups    atomic.Uint64
	handled    atomic.Uint64
}

// work is what Dispatch has to do. If a callback panics, the next one continues with it.
type work struct {
	seq     uint32 // of the Dispatch
	wcs     [64]verbs.WC
	polled  []verbs.WC // of wcs
	pending []event
	// Results of a completion for which callbacks are due.
	due       *Socket
	sent      []*Buffer
	sentDone  int // of sent: how many callbacks were made
	connected bool
	writable  bool
}

// event is work that other goroutines queue for Dispatch. If after is set, Dispatch first
// handles all completions in the CQ of that socket.
type event struct {
	after *Socket
	do    []func()
}

// NewLoop creates a loop. It opens devices when it needs them.
func NewLoop(opt Options) (*Loop, error) {
	const op = "create message loop"
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, fail(op, "", err)
	}
	files := host.NewSet()
	l := &Loop{opt: opt, files: files, sockets: map[uint32]*Socket{}, listeners: map[*Listener]struct{}{}}
	l.cache.limit = opt.Cache
	l.ctx, l.cancel = context.WithCancel(context.Background())
	files.Wake() // so that a loop that was never dispatched has an event, see addNotRunning
	return l, nil
}

// loopOrNew returns l, or a new loop that runs until its sockets and listeners have ended.
func loopOrNew(l *Loop, opt Options) (*Loop, error) {
	if l != nil {
		return l, nil
	}
	l, err := NewLoop(opt)
	if err != nil {
		return nil, err
	}
	l.owned = true
	go l.Run(context.Background())
	return l, nil
}

// closeUnused makes Run close the loop if it is one of loopOrNew's and nothing uses it.
func (l *Loop) closeUnused() {
	l.mu.Lock()
	unused := l.owned && len(l.sockets)+len(l.listeners) == 0
	if unused {
		l.enter(closing)
	}
	l.mu.Unlock()
	if unused {
		l.files.Wake()
	}
}

// FD returns a file descriptor that is readable, for poll(2) and epoll(7), when Dispatch
// has something to do. With EPOLLET every event after Dispatch has returned causes an
// edge. It is valid until Close, and must only be waited on.
func (l *Loop) FD() int { return l.files.FD() }

// Dispatch handles all pending events without waiting, and returns their number. After
// some thousands of events it returns even if there are more; FD stays readable then.
func (l *Loop) Dispatch() (int, error) {
	return l.dispatchOnce(nil)
}

// dispatchOnce is Dispatch with the files that wait has found readable. It does no harm if
// another call has handled them in between.
func (l *Loop) dispatchOnce(ready []host.Event) (n int, err error) {
	if !l.dispatchMu.TryLock() {
		if l.in(closing) {
			return 0, verbs.ErrClosed
		}
		return 0, ErrDispatching
	}
	func() {
		l.counts.dispatches.Add(1)
		panicked := true
		defer func() {
			l.counts.dispatches.Add(1)
			l.endDispatch()
			if panicked {
				l.files.Wake() // there may be more work
			}
		}()
		if l.in(closing) {
			err = verbs.ErrClosed
		} else {
			n = l.dispatch(ready)
			l.counts.handled.Add(uint64(n))
		}
		panicked = false
	}()
	if l.in(closing) {
		l.finishClose()
	}
	return n, err
}

// DispatchWait waits until there are events, handles them as Dispatch does, and returns
// their number. It returns ctx's error if ctx ends first, and [verbs.ErrClosed] if the
// loop is closed.
func (l *Loop) DispatchWait(ctx context.Context) (int, error) {
	return l.wait(ctx, func(n int) bool { return n > 0 })
}

// Run waits for events and dispatches them until ctx ends or the loop is closed. It
// returns ctx's error or [verbs.ErrClosed]. It may be called again after ctx has ended.
func (l *Loop) Run(ctx context.Context) error {
	_, err := l.wait(ctx, func(int) bool { return false })
	return err
}

// wait waits and dispatches until enough returns true for the number of events handled.
func (l *Loop) wait(ctx context.Context, enough func(int) bool) (int, error) {
	if !l.counts.running.CompareAndSwap(false, true) {
		return 0, ErrDispatching
	}
	defer l.counts.running.Store(false)
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, l.files.Wake)()
	}
	n, err := l.Dispatch()
	for err == nil && !enough(n) {
		if err := ctx.Err(); err != nil {
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

// Close ends all sockets and listeners immediately and releases everything except buffers
// that the program has not freed. While Dispatch runs, as in callbacks, Close returns
// immediately, and Dispatch and Run do the rest before they return: wait for them. An
// iWARP handshake cannot be canceled: its resources are released when the kernel ends it,
// which takes 10 s, or minutes if no machine has the address. Close may be called again.
func (l *Loop) Close() error {
	if l == nil {
		return verbs.ErrClosed
	}
	l.mu.Lock()
	l.enter(closing)
	l.mu.Unlock()
	l.files.Wake()
	l.finishClose()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closeErr
}

// finishClose does the work of Close, unless Dispatch is running.
func (l *Loop) finishClose() {
	if !l.dispatchMu.TryLock() {
		return // the running Dispatch calls finishClose afterwards
	}
	defer l.endDispatch()
	if l.in(finished) {
		return
	}
	l.mu.Lock()
	var open []interface{ Close() error }
	for ln := range l.listeners {
		open = append(open, ln)
	}
	for _, s := range l.sockets {
		open = append(open, s)
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
	l.resume() // events queued in between
	l.mu.Lock()
	l.enter(finished)
	l.mu.Unlock()
	for _, d := range l.current() {
		l.detach(d, true)
	}
}

// beginCallback is called before each callback. It locks the goroutine to its thread
// until endDispatch, so that inCallback can recognize the goroutine.
func (l *Loop) beginCallback() {
	if l.caller.Load() == 0 {
		runtime.LockOSThread()
		l.work.seq++
		l.caller.Store(uint64(l.work.seq)<<32 | uint64(sys.ThreadID()))
	}
}

// endDispatch releases dispatchMu, and the thread of the callbacks.
func (l *Loop) endDispatch() {
	if l.caller.Load() != 0 {
		l.caller.Store(0)
		runtime.UnlockOSThread()
	}
	l.dispatchMu.Unlock()
}

// inCallback returns an error if a callback calls it, and nil if another goroutine calls
// it, even while a callback runs.
func (l *Loop) inCallback() error {
	c := l.caller.Load()
	if c == 0 || uint32(c) != uint32(sys.ThreadID()) || l.caller.Load() != c {
		return nil // last check: this goroutine may have moved to the thread since the first
	}
	return fmt.Errorf("called by a callback: %w", ErrDispatching)
}

// addNotRunning adds ErrNotRunning to err if no goroutine has run the loop since it read
// count from dispatchCount, although there are events.
func (l *Loop) addNotRunning(count uint64, err error) error {
	if count%2 != 0 || l.counts.dispatches.Load() != count || l.counts.running.Load() {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(closing) || len(l.files.Poll(make([]host.Event, 1))) == 0 {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrNotRunning)
}

// post queues an event for the next Dispatch.
func (l *Loop) post(after *Socket, do ...func()) {
	l.mu.Lock()
	closed := l.in(drained)
	if !closed {
		l.events = append(l.events, event{after, do})
		l.files.Wake()
	}
	l.mu.Unlock()
	if closed { // what remains only releases resources
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
	n = l.resume()
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

// current returns the current devices.
func (l *Loop) current() []*device {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.devices
}

// poll handles one batch of completions.
func (l *Loop) poll(s *shard) int {
	n := s.cq.Poll(l.work.wcs[:])
	l.work.polled = l.work.wcs[:n]
	l.completeAll()
	return n
}

func (l *Loop) completeAll() {
	for len(l.work.polled) > 0 {
		wc := &l.work.polled[0]
		l.work.polled = l.work.polled[1:]
		l.complete(wc)
	}
}

// resume handles the work that a callback that panicked has left, and then the events of
// other goroutines.
func (l *Loop) resume() int {
	l.runCallbacks()
	l.completeAll()
	return l.handle()
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

// request is the kind of a request. A WC's ID has it and the ID of the socket.
type request uint8

const (
	reqReceive   request = iota // index of the slot
	reqMessage                  // for the first message of inFlight
	reqRead                     // index in ring
	reqAck                      // resets ackInFlight
	reqByeAnswer                // sets byeDelivered
	reqAnnounce                 // its completion is ignored
)

func (s *Socket) wrID(r request, index int) uint64 {
	return uint64(s.id)<<32 | uint64(r)<<24 | uint64(index)
}

// complete handles one completion.
func (l *Loop) complete(wc *verbs.WC) {
	l.mu.Lock()
	s := l.sockets[uint32(wc.ID>>32)]
	l.mu.Unlock()
	if s == nil {
		return // it has ended
	}
	s.mu.Lock()
	s.complete(request(wc.ID>>24), int(wc.ID&0xffffff), wc)
	s.mu.Unlock()
	l.work.due = s
	l.runCallbacks()
}

// runCallbacks runs the callbacks that are due. It marks each as done before it runs.
func (l *Loop) runCallbacks() {
	s := l.work.due
	if s == nil {
		return
	}
	cb := &l.opt.Callbacks
	if l.work.connected {
		l.work.connected = false
		close(s.establishedCh)
		l.logSocket(slog.LevelDebug, "socket established", s, nil)
		if cb.Established != nil {
			l.beginCallback()
			cb.Established(s)
		}
	}
	for l.work.sentDone < len(l.work.sent) {
		b := l.work.sent[l.work.sentDone]
		l.work.sent[l.work.sentDone] = nil
		l.work.sentDone++
		l.beginCallback()
		cb.Sent(s, b)
	}
	l.work.sent, l.work.sentDone = l.work.sent[:0], 0
	if l.work.writable {
		l.work.writable = false
		signal(s.out.writable)
		if cb.Writable != nil {
			l.beginCallback()
			cb.Writable(s)
		}
	}
	for {
		s.mu.Lock()
		if !s.in.ready() || s.closed {
			s.mu.Unlock()
			break
		}
		if cb.Message == nil {
			s.mu.Unlock()
			signal(s.in.readable)
			break
		}
		b := s.in.pop()
		s.mu.Unlock()
		l.beginCallback()
		cb.Message(s, b)
	}
	l.work.due = nil
}

// signal wakes one goroutine that waits for ch now, or the next one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

package rmsg

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// Loop is an event loop: its sockets move only while a goroutine is in
// [Loop.Dispatch] or [Loop.Run], which is also where callbacks run. All other
// methods, and those of sockets, may be called by any goroutine. Whoever made
// it closes it.
type Loop struct {
	opt    Options
	life   context.Context // done when the loop is being closed
	end    context.CancelFunc
	poller *poller

	turn  sync.Mutex // held by whoever dispatches; the fields up to caller are theirs
	turns uint32
	// What remains to be handled. A callback that panics leaves it to the next
	// Dispatch.
	wcs     [64]verbs.WC
	polled  []verbs.WC // of wcs
	pending []event
	// What a completion has led to, for which callbacks are due.
	due         *Socket
	sent        []*Buffer
	called      int // of sent
	established bool
	writable    bool
	finished    bool

	// caller is the thread to which the goroutine that makes callbacks is locked,
	// and above it a number that no other Dispatch has; 0 outside of callbacks.
	caller atomic.Uint64

	rounds  atomic.Uint64 // Dispatch has begun and ended; odd while it is under way
	running atomic.Int32  // goroutines in Run

	opening sync.Mutex     // held while a device is opened
	tasks   sync.WaitGroup // goroutines that end soon after life

	mu         sync.Mutex
	closing    bool
	closed     bool // poller has gone
	closeErr   error
	stop       atomic.Bool // closing, for Dispatch to see
	devices    []*device   // replaced, not changed
	events     []event
	sockets    map[uint32]*Socket
	lastID     uint32
	lastDevice int32
	listeners  map[*Listener]struct{}
}

// event is what goroutines tell whoever dispatches.
type event struct {
	request *Request
	socket  *Socket
	err     error // why the socket has gone
	gone    bool
	release bool // its QP has gone, too
	idle    *device
}

// NewLoop makes a loop. It opens devices when it needs them.
func NewLoop(opt Options) (*Loop, error) {
	const op = "make message loop"
	if err := opt.check(); err != nil {
		return nil, fail(op, "", err)
	}
	p, err := newPoller()
	if err != nil {
		return nil, fail(op, "", err)
	}
	l := &Loop{opt: opt, poller: p, sockets: map[uint32]*Socket{}, listeners: map[*Listener]struct{}{}}
	l.life, l.end = context.WithCancel(context.Background())
	p.tell() // so that a loop that was never dispatched has something to do
	return l, nil
}

// FD is a file that is readable, as poll(2) and epoll(7) see it, when Dispatch
// has something to do. It is good until Close, and for nothing but waiting.
func (l *Loop) FD() int { return l.poller.fd }

// Dispatch handles all that has happened, without waiting, and returns how many
// things that were. If there is no end to it, it returns after some thousand
// and leaves FD readable.
func (l *Loop) Dispatch() (n int, err error) {
	if !l.turn.TryLock() {
		if l.stop.Load() {
			return 0, verbs.ErrClosed
		}
		return 0, ErrDispatching
	}
	func() {
		l.rounds.Add(1)
		panicked := true
		defer func() {
			l.rounds.Add(1)
			l.leave()
			if panicked {
				l.tell() // there may be more to do
			}
		}()
		if l.stop.Load() {
			err = verbs.ErrClosed
		} else {
			n = l.dispatch()
		}
		panicked = false
	}()
	if l.stop.Load() {
		l.finish()
	}
	return n, err
}

// Run dispatches, and sleeps in between, until ctx ends, whose error it
// returns, or the loop is closed, which gives ErrClosed.
func (l *Loop) Run(ctx context.Context) error {
	l.running.Add(1)
	defer l.running.Add(-1)
	defer context.AfterFunc(ctx, l.tell)()
	for {
		n, err := l.Dispatch()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if n > 0 {
			continue // before going to sleep for nothing
		}
		if err := l.poller.wait(); err != nil {
			return verbs.ErrClosed
		}
	}
}

// Close ends all sockets and listeners at once and releases everything but
// buffers that the program has not freed. If a Dispatch is under way, as it is
// in callbacks, Close returns at once, and Dispatch and Run do the rest before
// they return: wait for them. An iWARP handshake cannot be broken off: what it
// has is released when the kernel gives it up, which takes 10 s, or minutes
// where nobody is. Close may be called again.
func (l *Loop) Close() error {
	l.mu.Lock()
	l.closing = true
	l.stop.Store(true)
	l.mu.Unlock()
	l.tell()
	l.finish()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closeErr
}

// finish is what Close does, by whoever comes first and is not in Dispatch.
func (l *Loop) finish() {
	if !l.turn.TryLock() {
		return // who has it comes here afterwards
	}
	defer l.leave()
	if l.finished {
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
	l.end()
	l.tasks.Wait()
	if !l.closed {
		l.dispatch() // what became of them
		l.mu.Lock()
		l.closed = true
		l.poller.close()
		l.mu.Unlock()
	}
	l.resume() // what came in between
	l.finished = true
	for _, d := range l.current() {
		l.detach(d, true)
	}
}

// calls is called before each callback. It locks the goroutine to its thread
// until leave, so that inCallback can recognize the goroutine.
func (l *Loop) calls() {
	if l.caller.Load() == 0 {
		runtime.LockOSThread()
		l.turns++
		l.caller.Store(uint64(l.turns)<<32 | uint64(unix.Gettid()))
	}
}

// leave ends the turn.
func (l *Loop) leave() {
	if l.caller.Load() != 0 {
		l.caller.Store(0)
		runtime.UnlockOSThread()
	}
	l.turn.Unlock()
}

// inCallback returns an error if it is called by a callback, and nil if another
// goroutine calls it, even while a callback runs.
func (l *Loop) inCallback() error {
	c := l.caller.Load()
	if c == 0 || uint32(c) != uint32(unix.Gettid()) || l.caller.Load() != c {
		return nil // the last: the goroutine may have come to the thread since
	}
	return fmt.Errorf("called by a callback: %w", ErrDispatching)
}

// stalled adds ErrNotRunning to err if nothing has run the loop since rounds was
// that, although it has something to do.
func (l *Loop) stalled(rounds uint64, err error) error {
	if rounds%2 != 0 || l.rounds.Load() != rounds || l.running.Load() > 0 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || !isReady(uintptr(l.poller.fd)) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrNotRunning)
}

// tell has Dispatch look.
func (l *Loop) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.poller.tell()
	}
}

// post has an event handled by whoever dispatches.
func (l *Loop) post(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		if e.release {
			e.socket.release()
		}
		return
	}
	l.events = append(l.events, e)
	l.poller.tell()
}

// busy is after how many completions Dispatch returns.
const busy = 4096

func (l *Loop) dispatch() (n int) {
	var room [8]unix.EpollEvent
	ready := l.poller.poll(room[:])
	devices := l.current()
	for _, e := range ready {
		if e.Fd == tellIndex {
			l.poller.take()
		}
		for _, d := range devices {
			if d.id != e.Fd {
				continue
			}
			d.drain()
			if e.Events&^unix.EPOLLIN != 0 {
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
					// What comes between polling and arming makes no event.
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
		if n >= busy || l.stop.Load() {
			l.tell()
			break
		}
	}
	return n
}

// current returns the devices there are now.
func (l *Loop) current() []*device {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.devices
}

// poll handles one batch of completions.
func (l *Loop) poll(s *shard) int {
	n := s.cq.Poll(l.wcs[:])
	l.polled = l.wcs[:n]
	l.completeAll()
	return n
}

func (l *Loop) completeAll() {
	for len(l.polled) > 0 {
		wc := &l.polled[0]
		l.polled = l.polled[1:]
		l.complete(wc)
	}
}

// resume handles what a callback that panicked has left, and then what
// goroutines have told.
func (l *Loop) resume() int {
	l.call()
	l.completeAll()
	return l.handle()
}

// handle handles what goroutines have told.
func (l *Loop) handle() (n int) {
	l.mu.Lock()
	l.pending, l.events = append(l.pending, l.events...), nil
	l.mu.Unlock()
	for ; len(l.pending) > 0; n++ {
		e := &l.pending[0]
		if e.request != nil {
			l.pending = l.pending[1:]
			e.request.dispatch()
			continue
		}
		if e.idle != nil {
			l.pending = l.pending[1:]
			l.detach(e.idle, false)
			continue
		}
		// All that its CQ has of the socket comes before what it holds now. What
		// siw flushed as it was posted has disarmed the CQ, without an event.
		if sh := e.socket.shard; sh != nil {
			sh.armed = false
			for left := sh.cq.Cap(); left > 0; {
				n := l.poll(sh)
				if n == 0 {
					break
				}
				left -= n
			}
		}
		if e.gone {
			l.gone(e.socket, e.err)
			e.gone = false
			l.disconnected(e.socket)
		}
		if e.release {
			e.socket.release()
		}
		l.pending = l.pending[1:]
	}
	l.pending = nil
	return n
}

// WC.ID is who posted the request and what it was.
type request uint8

const (
	reqReceive  request = iota // index of the slot
	reqMessage                 // index in flight
	reqRead                    // index in ring
	reqAck                     // of ackBusy
	reqAnnounce                // nobody waits for these
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
		return // it has gone
	}
	s.mu.Lock()
	s.complete(request(wc.ID>>24), int(wc.ID&0xffffff), wc)
	s.mu.Unlock()
	l.due = s
	l.call()
}

// call makes the callbacks that are due. What it has begun to call is not due any
// more.
func (l *Loop) call() {
	s := l.due
	if s == nil {
		return
	}
	cb := &l.opt.Callbacks
	if l.established {
		l.established = false
		close(s.up)
		if cb.Established != nil {
			l.calls()
			cb.Established(s)
		}
	}
	for l.called < len(l.sent) {
		b := l.sent[l.called]
		l.sent[l.called] = nil
		l.called++
		l.calls()
		cb.Sent(s, b)
	}
	l.sent, l.called = l.sent[:0], 0
	if l.writable {
		l.writable = false
		signal(s.writable)
		if cb.Writable != nil {
			l.calls()
			cb.Writable(s)
		}
	}
	for {
		s.mu.Lock()
		if !s.ready() || s.closed {
			s.mu.Unlock()
			break
		}
		if cb.Message == nil {
			s.mu.Unlock()
			signal(s.readable)
			break
		}
		b := s.pop()
		s.mu.Unlock()
		l.calls()
		cb.Message(s, b)
	}
	l.due = nil
}

// signal wakes one who waits for ch, now or when it comes.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

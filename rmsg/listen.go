package rmsg

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// Listener takes connections for a loop. Whoever made it closes it, or the loop
// does.
type Listener struct {
	l       *Loop
	cm      *cm.Listener
	waiting chan *Request // for Accept
	asking  atomic.Int32  // requests that have no answer
	once    sync.Once
	closed  chan struct{}
	err     error
}

// Listen takes connections on addr, as [cm.Listen] does.
func (l *Loop) Listen(ctx context.Context, addr string) (*Listener, error) {
	if err := l.inCallback(); err != nil {
		return nil, fail("listen on", addr, err)
	}
	lower, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	ln := &Listener{l: l, cm: lower, waiting: make(chan *Request, l.opt.Backlog), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		lower.Close()
		return nil, fail("listen", addr, verbs.ErrClosed)
	}
	l.listeners[ln] = struct{}{}
	l.tasks.Go(ln.serve)
	return ln, nil
}

// Addr is where it listens.
func (ln *Listener) Addr() cm.Addr { return ln.cm.Addr() }

// Close stops listening and rejects the requests that wait for Accept. Sockets
// are not affected.
func (ln *Listener) Close() error {
	ln.once.Do(func() {
		ln.l.mu.Lock()
		delete(ln.l.listeners, ln)
		ln.l.mu.Unlock()
		ln.err = ln.cm.Close()
		close(ln.closed)
		for {
			select {
			case r := <-ln.waiting:
				r.reject()
				continue
			default:
			}
			return
		}
	})
	return ln.err
}

// serve takes requests until the listener is closed.
func (ln *Listener) serve() {
	for {
		lower, err := ln.cm.Accept(ln.l.life)
		if err != nil {
			ln.Close() // or nobody would know
			return
		}
		r := &Request{ln: ln, cm: lower}
		ln.asking.Add(1)
		if r.peer, err = parseHello(lower.PrivateData()); err != nil || int(ln.asking.Load()) > ln.l.opt.Backlog {
			r.reject()
			continue
		}
		ln.l.post(event{request: r})
	}
}

// Accept waits for a request and accepts it: those who dial wait for that. The
// socket may not be established
// yet: Send and Recv wait until it is, so that one peer that is slow delays no
// other. It is for loops without a Request callback.
func (ln *Listener) Accept(ctx context.Context) (*Socket, error) {
	const op = "accept on"
	if err := ln.l.inCallback(); err != nil {
		return nil, fail(op, ln.Addr().String(), err)
	}
	rounds := ln.l.rounds.Load()
	for {
		select {
		case r := <-ln.waiting:
			if s, err := r.Accept(nil); err == nil {
				return s, nil
			} // else it had waited too long
		case <-ln.closed:
			return nil, fail(op, ln.Addr().String(), verbs.ErrClosed)
		case <-ctx.Done():
			return nil, fail(op, ln.Addr().String(), ln.l.stalled(rounds, ctx.Err()))
		}
	}
}

// Request is a connection that a peer asks for, to be accepted or rejected,
// once.
type Request struct {
	ln   *Listener
	cm   *cm.Request
	peer hello

	mu       sync.Mutex
	answered bool
	timer    *time.Timer // while it waits for Accept
}

// RemoteAddr is who asks, LocalAddr whom they asked for.
func (r *Request) RemoteAddr() cm.Addr { return r.cm.RemoteAddr() }
func (r *Request) LocalAddr() cm.Addr  { return r.cm.LocalAddr() }

// PrivateData is what the peer's program sent along.
func (r *Request) PrivateData() []byte { return r.peer.private }

// dispatch hands the request to the program.
func (r *Request) dispatch() {
	ln := r.ln
	if cb := ln.l.opt.Callbacks.Request; cb != nil {
		defer r.reject() // if it has no answer, or the callback panics
		ln.l.calls()
		cb(r)
		return
	}
	r.mu.Lock()
	r.timer = time.AfterFunc(ln.l.opt.AnswerTimeout, r.reject)
	r.mu.Unlock()
	select {
	case <-ln.closed:
		r.reject()
	case ln.waiting <- r:
		select {
		case <-ln.closed: // and may have looked before
			r.reject()
		default:
		}
	default:
		r.reject()
	}
}

// answer claims the one answer.
func (r *Request) answer() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return verbs.ErrClosed
	}
	r.answered = true
	r.ln.asking.Add(-1)
	if r.timer != nil {
		r.timer.Stop()
	}
	return nil
}

// Accept takes the connection and returns at once: Established or Disconnected
// follows. privateData goes to the peer, see [Socket.PrivateData]: up to 172
// bytes on RoCE, 231 on iWARP; it may be nil.
func (r *Request) Accept(privateData []byte) (*Socket, error) {
	const op = "accept from"
	l, addr := r.ln.l, r.RemoteAddr().String()
	private, err := l.hello(privateData)
	if err != nil {
		return nil, fail(op, addr, err)
	}
	if err := r.answer(); err != nil {
		return nil, fail(op, addr, err)
	}
	s := newSocket(l, addr, false)
	s.meet(r.peer)
	err = s.start(func(ctx context.Context, opt cm.Options) (*cm.Endpoint, error) {
		opt.PrivateData = private
		return r.cm.Accept(ctx, opt)
	})
	if err != nil {
		r.cm.Reject(nil)
		return nil, fail(op, addr, err)
	}
	return s, nil
}

// Reject turns the request down: the peer's socket ends with a
// [*cm.RejectedError] that carries privateData, up to 124 bytes on RoCE.
func (r *Request) Reject(privateData []byte) error {
	const op = "reject"
	private, err := r.ln.l.hello(privateData)
	if err == nil {
		err = r.answer()
	}
	if err != nil {
		return fail(op, r.RemoteAddr().String(), err)
	}
	return r.cm.Reject(private)
}

// reject turns the request down unless it was answered.
func (r *Request) reject() { r.Reject(nil) }

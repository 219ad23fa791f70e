package lifetime

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// blockingCall is a call that waits forever, unless its context ends, and the call that ends it.
type blockingCall struct {
	call  func(context.Context) error
	end   func() error // nil for a call that only its context ends
	after func()       // releases the rest
}

// blockingCalls are the blocking calls, by name. Each creates what it needs.
var blockingCalls = map[string]func(t *testing.T, device string) blockingCall{
	"uverbs: CQ.PollWait, closing the CQ": func(t *testing.T, device string) blockingCall {
		dev := labtest.Must(uverbs.Open(device))(t)
		ch := labtest.Must(dev.CreateCompChannel())(t)
		cq := labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: ch}))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := cq.PollWait(ctx, make([]verbs.WC, 1)); return err },
			end:   cq.Close,
			after: func() { check(t, ch.Close(), dev.Close()) },
		}
	},
	"uverbs: CQ.Wait, closing the CQ": func(t *testing.T, device string) blockingCall {
		dev := labtest.Must(uverbs.Open(device))(t)
		ch := labtest.Must(dev.CreateCompChannel())(t)
		cq := labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: ch}))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { return cq.Wait(ctx) },
			end:   cq.Close,
			after: func() { check(t, ch.Close(), dev.Close()) },
		}
	},
	"uverbs: Sleep for a CQ, closing it": func(t *testing.T, device string) blockingCall {
		dev := labtest.Must(uverbs.Open(device))(t)
		ch := labtest.Must(dev.CreateCompChannel())(t)
		cq := labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: ch}))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := bridge.Sleep(cq, ctx, time.Time{}); return err },
			end:   cq.Close,
			after: func() { check(t, ch.Close(), dev.Close()) },
		}
	},
	"uverbs: Context.NextAsyncEvent, closing it": func(t *testing.T, device string) blockingCall {
		dev := labtest.Must(uverbs.Open(device))(t)
		return blockingCall{call: func(ctx context.Context) error { _, err := dev.NextAsyncEvent(ctx); return err }, end: dev.Close}
	},
	"uverbs: Context.AsyncEvents, closing it": func(t *testing.T, device string) blockingCall {
		dev := labtest.Must(uverbs.Open(device))(t)
		return blockingCall{end: dev.Close, call: func(ctx context.Context) (err error) {
			for _, err = range dev.AsyncEvents(ctx) {
			}
			return err
		}}
	},
	"cm: Channel.Next, closing it": func(t *testing.T, device string) blockingCall {
		ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
		id := labtest.Must(ch.NewID(0))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := ch.Next(ctx); return err },
			end:   ch.Close,
			after: func() { id.Close() },
		}
	},
	"cm: Listener.Accept, closing it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{call: func(ctx context.Context) error { _, err := l.Accept(ctx); return err }, end: l.Close}
	},
	"cm: Dial, cancelling it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := cm.Dial(ctx, l.Addr().String()); return err },
			after: func() { check(t, l.Close()) },
		}
	},
	"cm: Datagrams.Recv, closing the endpoint": func(t *testing.T, device string) blockingCall {
		if labtest.IWARP(t, device) {
			t.Skip("no datagrams on iWARP")
		}
		d := cm.Dialer{PortSpace: cm.PortSpaceUDP}
		l := labtest.Must((&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		go func() {
			if r, err := l.Accept(context.Background()); err == nil {
				if e, err := r.Accept(context.Background(), cm.Options{}); err == nil {
					e.Close()
				}
			}
		}()
		e := labtest.Must(d.Dial(within(t), l.Addr().String()))(t)
		m := labtest.Must(cm.NewDatagrams(e, 64))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := m.Recv(ctx, make([]byte, 64)); return err },
			end:   e.Close,
			after: func() { check(t, l.Close()) },
		}
	},
	"conn: Listener.Accept, closing it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(rconn.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{call: func(ctx context.Context) error { _, err := l.Accept(ctx); return err }, end: l.Close}
	},
	"conn: AwaitAdvert, closing the Conn": connBlocked(func(ctx context.Context, c *rconn.Conn) error { _, err := c.AwaitAdvert(ctx); return err }),
	"conn: AwaitDisconnect, closing the Conn": connBlocked(func(ctx context.Context, c *rconn.Conn) error {
		return c.AwaitDisconnect(ctx)
	}),
	"conn: Await, closing the Conn": connBlocked(func(ctx context.Context, c *rconn.Conn) error {
		return c.Await(ctx, rconn.Recvs, make([]verbs.WC, 1))
	}),
	"msg: Loop.Run, closing it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
		return blockingCall{call: func(ctx context.Context) error { return l.Run(ctx) }, end: l.Close}
	},
	"msg: Loop.Dispatch, closing it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
		return blockingCall{
			call: func(ctx context.Context) (err error) {
				for err == nil { // a new loop has something to do
					_, err = l.Dispatch(ctx)
				}
				return err
			},
			end: l.Close,
		}
	},
	"msg: Listener.Accept, closing one with a loop of its own": func(t *testing.T, device string) blockingCall {
		ln := labtest.Must(rmsg.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{call: func(ctx context.Context) error { _, err := ln.Accept(ctx); return err }, end: ln.Close}
	},
	"msg: Listener.Accept, closing it": func(t *testing.T, device string) blockingCall {
		l := newLoop(t, rmsg.Options{})
		ln := labtest.Must((&rmsg.ListenConfig{Loop: l.Loop}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := ln.Accept(ctx); return err },
			end:   ln.Close,
			after: func() { l.end(t) },
		}
	},
	"msg: Listener.Accept, closing the loop": func(t *testing.T, device string) blockingCall {
		l := newLoop(t, rmsg.Options{})
		ln := labtest.Must((&rmsg.ListenConfig{Loop: l.Loop}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{
			call:  func(ctx context.Context) error { _, err := ln.Accept(ctx); return err },
			end:   l.Loop.Close,
			after: func() { l.end(t) },
		}
	},
	"msg: Recv, closing the socket": msgBlocked(func(ctx context.Context, s *rmsg.Conn) error { _, err := s.Recv(ctx); return err }),
	"msg: Send, closing the socket": msgBlocked(func(ctx context.Context, s *rmsg.Conn) error {
		for {
			if err := s.Send(ctx, make([]byte, 100)); err != nil {
				return err
			}
		}
	}),
	"rsock: Listener.Accept, closing it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		return blockingCall{call: func(ctx context.Context) error { _, err := l.Accept(); return err }, end: l.Close}
	},
	"rsock: Dial, cancelling it": func(t *testing.T, device string) blockingCall {
		l := labtest.Must(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		return blockingCall{
			call: func(ctx context.Context) error {
				_, err := new(rsock.Dialer).DialContext(ctx, "rdma", l.Addr().String())
				return err
			},
			after: func() { check(t, l.Close()) },
		}
	},
	"rsock: Read, closing the Conn": rsockBlocked(func(c *rsock.Conn) error { _, err := c.Read(make([]byte, 1)); return err }),
	"rsock: WriteTo, closing the Conn": rsockBlocked(func(c *rsock.Conn) error {
		_, err := c.WriteTo(io.Discard)
		return err
	}),
	"rsock: Write, closing the Conn": rsockBlocked(func(c *rsock.Conn) error { _, err := c.Write(make([]byte, 1<<20)); return err }),
	"rsock: ReadFrom, closing the Conn": rsockBlocked(func(c *rsock.Conn) error {
		_, err := c.ReadFrom(endlessReader{})
		return err
	}),
}

type endlessReader struct{}

func (endlessReader) Read(b []byte) (int, error) { return len(b), nil }

func connBlocked(call func(context.Context, *rconn.Conn) error) func(t *testing.T, device string) blockingCall {
	return func(t *testing.T, device string) blockingCall {
		a, b := conns(t, device)
		return blockingCall{call: func(ctx context.Context) error { return call(ctx, a) }, end: a.Close, after: func() { check(t, b.Close()) }}
	}
}

func msgBlocked(call func(context.Context, *rmsg.Conn) error) func(t *testing.T, device string) blockingCall {
	return func(t *testing.T, device string) blockingCall {
		l := newLoop(t, rmsg.Options{Credits: 2, SendQueue: 2})
		a, _, _ := sockets(t, device, l)
		return blockingCall{call: func(ctx context.Context) error { return call(ctx, a) }, end: a.Close, after: func() { l.end(t) }}
	}
}

func rsockBlocked(call func(*rsock.Conn) error) func(t *testing.T, device string) blockingCall {
	return func(t *testing.T, device string) blockingCall {
		a, b := streams(t, device)
		a.SetLinger(0)
		return blockingCall{call: func(context.Context) error { return call(a) }, end: a.Close, after: func() { b.SetLinger(0); check(t, b.Close()) }}
	}
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileBlocked ends calls at random moments before, while and after they begin to wait, by a
// call and by their context. Most calls run twice at the same time.
func TestCloseWhileBlocked(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		for name, start := range blockingCalls {
			t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				noContext := strings.HasPrefix(name, "rsock") && !strings.Contains(name, "Dial")
				for round := range 3 * *times {
					b := start(t, device)
					if b.end != nil {
						endBlocked(t, name, b.call, b.end, round, net.ErrClosed)
					}
					if b.after != nil {
						b.after()
					}
					if noContext {
						continue
					}
					b = start(t, device)
					ctx, cancel := context.WithCancelCause(t.Context())
					why := errors.New("the test ends it")
					endBlocked(t, name, func(context.Context) error { return b.call(ctx) }, func() error { cancel(why); return nil }, round, context.Canceled, why)
					if b.end != nil {
						check(t, b.end())
					}
					if b.after != nil {
						b.after()
					}
				}
			})
		}
	})
}

// endBlocked ends a call at a random moment. Its error matches all of want.
func endBlocked(t *testing.T, name string, call func(context.Context) error, end func() error, round int, want ...error) {
	t.Helper()
	var ended [2]chan error
	for i := range ended {
		ended[i] = make(chan error, 1)
		go func() { ended[i] <- call(context.Background()) }()
		if strings.Contains(name, "Run") || strings.Contains(name, "Dispatch") || strings.Contains(name, "Dial") || strings.Contains(name, "Sleep") {
			ended[i+1] = ended[i] // one at a time
			break
		}
	}
	// In the first round the calls sleep; otherwise they may be anywhere.
	time.Sleep([]time.Duration{30 * time.Millisecond, 0, time.Duration(rand.IntN(1000)) * time.Microsecond}[round%3])
	closed := make(chan error, 1)
	go func() { closed <- end() }()
	for i, c := range []chan error{closed, ended[0], ended[1]} {
		if i == 2 && ended[1] == ended[0] {
			break
		}
		select {
		case err := <-c:
			if i == 0 && err != nil {
				t.Errorf("ending: %v", err)
			}
			for _, want := range want {
				if i > 0 && !errors.Is(err, want) {
					t.Errorf("the call: %v, want %v", err, want)
				}
			}
		case <-time.After(waitTimeout):
			t.Fatalf("hangs: %d", i)
		}
	}
}

package faults

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// connEnv is the environment of a connection case: a listener, and a context that limits the
// time of the case.
type connEnv struct {
	testing.TB
	ctx context.Context
	l   *cm.Listener
}

func newConnEnv(t testing.TB) *connEnv {
	ctx := labtest.Within(t, 20*time.Second)
	l := labtest.Made(cm.Listen(ctx, labtest.Addr+":0"))(t)
	return &connEnv{t, ctx, l}
}

func (p *connEnv) addr() string { return p.l.Addr().String() }

// shortContext returns a context that ends while the call that it is passed to waits.
func (p *connEnv) shortContext() context.Context {
	ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
	p.Cleanup(cancel)
	return ctx
}

func (p *connEnv) canceledContext() context.Context {
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	return ctx
}

// dial connects with options to the listener, on which only the case may accept.
func (p *connEnv) dial(ctx context.Context, opt cm.Options) error {
	e, err := (&cm.Dialer{Options: opt}).Dial(ctx, p.addr())
	if err == nil {
		e.Close()
	}
	return err
}

// request dials, and returns the request at the listener. The dialer stays connected until
// the case is over: the end of a connection may overtake its start.
func (p *connEnv) request(opt cm.Options) *cm.Request {
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if e, err := (&cm.Dialer{Options: opt}).Dial(ctx, p.addr()); err == nil {
			<-ctx.Done()
			e.Close()
		}
	}()
	p.Cleanup(func() { cancel(); <-done })
	r, err := p.l.Accept(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	return r
}

func (p *connEnv) accept(r *cm.Request, ctx context.Context, opt cm.Options) error {
	e, err := r.Accept(ctx, opt)
	if err == nil {
		e.Close()
	}
	return err
}

// serve answers the next request.
func (p *connEnv) serve(answer func(*cm.Request) error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if r, err := p.l.Accept(p.ctx); err == nil {
			answer(r)
		}
	}()
	p.Cleanup(func() { p.l.Close(); <-done })
}

var errSetup = errors.New("set-up went wrong")

func failSetup(*cm.Endpoint) error { return errSetup }

var connCases = []struct {
	name string
	run  func(*connEnv) error
	want error
}{
	{"dial no address", func(p *connEnv) error { return errOf(cm.Dial(p.ctx, "")) }, nil},
	{"dial without port", func(p *connEnv) error { return errOf(cm.Dial(p.ctx, "10.9.0.1")) }, nil},
	{"dial no such host", func(p *connEnv) error { return errOf(cm.Dial(p.ctx, "no.such.host.invalid:1")) }, nil},
	{"dial unreachable address", func(p *connEnv) error { return errOf(cm.Dial(p.ctx, "192.0.2.1:1")) }, unix.ENETUNREACH},
	{"dial address that no RDMA device serves", func(p *connEnv) error { return errOf(cm.Dial(p.ctx, "127.0.0.1:1")) }, unix.ENODEV},
	{"dial neighbour that does not answer", func(p *connEnv) error {
		return errOf((&cm.Dialer{ResolveTimeout: 300 * time.Millisecond}).Dial(p.ctx, "10.9.0.77:1"))
	}, unix.ETIMEDOUT},
	{"dial from a foreign address", func(p *connEnv) error {
		return errOf((&cm.Dialer{LocalAddr: netip.MustParseAddrPort("192.0.2.1:0")}).Dial(p.ctx, p.addr()))
	}, unix.EADDRNOTAVAIL},
	{"dial a port without a listener", func(p *connEnv) error {
		p.l.Close()
		return p.dial(p.ctx, cm.Options{})
	}, unix.ECONNREFUSED},
	{"dial and be rejected", func(p *connEnv) error {
		p.serve(func(r *cm.Request) error { return r.Reject([]byte("no")) })
		err := p.dial(p.ctx, cm.Options{})
		if re, ok := errors.AsType[*cm.RejectedError](err); !ok || string(re.PrivateData[:2]) != "no" {
			p.Errorf("%+v", re)
		}
		return err
	}, unix.ECONNREFUSED},
	{"dial a listener that closes", func(p *connEnv) error {
		time.AfterFunc(50*time.Millisecond, func() { p.l.Close() })
		return p.dial(p.ctx, cm.Options{})
	}, unix.ECONNREFUSED},
	{"dial with too much private data", func(p *connEnv) error {
		return p.dial(p.ctx, cm.Options{PrivateData: make([]byte, 256)})
	}, cm.ErrPrivateData},
	{"dial with more private data than RoCE carries", func(p *connEnv) error {
		return p.dial(p.ctx, cm.Options{PrivateData: make([]byte, 57)})
	}, cm.ErrPrivateData},
	{"accept with more private data than RoCE carries", func(p *connEnv) error {
		return p.accept(p.request(cm.Options{}), p.ctx, cm.Options{PrivateData: make([]byte, 197)})
	}, cm.ErrPrivateData},
	{"dial with absurd queues", func(p *connEnv) error {
		return p.dial(p.ctx, cm.Options{Cap: verbs.QPCap{MaxSendWR: 1 << 30, MaxSendSGE: 1}})
	}, unix.EINVAL},
	{"dial with a failing set-up", func(p *connEnv) error { return p.dial(p.ctx, cm.Options{Setup: failSetup}) }, errSetup},
	{"dial with a closed PD", func(p *connEnv) error {
		s := newVerbsEnv(p.TB)
		s.closeTwice(s.qp, s.mr, s.pd)
		return p.dial(p.ctx, cm.Options{PD: s.pd})
	}, verbs.ErrClosed},

	{"dial cancelled before it starts", func(p *connEnv) error { return p.dial(p.canceledContext(), cm.Options{}) }, context.Canceled},
	{"dial cancelled while looking up the name", func(p *connEnv) error {
		return errOf(cm.Dial(p.canceledContext(), "no.such.host.invalid:1"))
	}, context.Canceled},
	{"dial cancelled while resolving the address", func(p *connEnv) error {
		return errOf(cm.Dial(p.shortContext(), "10.9.0.78:1"))
	}, context.DeadlineExceeded},
	{"dial cancelled in set-up", func(p *connEnv) error {
		ctx, cancel := context.WithCancel(p.ctx)
		return p.dial(ctx, cm.Options{Setup: func(*cm.Endpoint) error { cancel(); return nil }})
	}, context.Canceled},
	{"dial cancelled while connecting", func(p *connEnv) error { return p.dial(p.shortContext(), cm.Options{}) }, context.DeadlineExceeded},

	{"listen on no address", func(p *connEnv) error { return errOf(cm.Listen(p.ctx, "nonsense")) }, nil},
	{"listen on a foreign address", func(p *connEnv) error { return errOf(cm.Listen(p.ctx, "192.0.2.1:1")) }, unix.EADDRNOTAVAIL},
	{"listen on a port in use", func(p *connEnv) error { return errOf(cm.Listen(p.ctx, p.addr())) }, unix.EADDRINUSE},
	{"listen on absurd port", func(p *connEnv) error { return errOf(cm.Listen(p.ctx, "10.9.0.1:99999")) }, nil},

	{"accept cancelled before it starts", func(p *connEnv) error { return errOf(p.l.Accept(p.canceledContext())) }, context.Canceled},
	{"accept cancelled while waiting for a request", func(p *connEnv) error { return errOf(p.l.Accept(p.shortContext())) }, context.DeadlineExceeded},
	{"accept on a closed listener", func(p *connEnv) error {
		p.l.Close()
		return errOf(p.l.Accept(p.ctx))
	}, verbs.ErrClosed},
	{"accept on a listener that closes", func(p *connEnv) error {
		time.AfterFunc(20*time.Millisecond, func() { p.l.Close() })
		return errOf(p.l.Accept(p.ctx))
	}, verbs.ErrClosed},
	{"accept a request, cancelled before it starts", func(p *connEnv) error {
		return p.accept(p.request(cm.Options{}), p.canceledContext(), cm.Options{})
	}, context.Canceled},
	{"accept a request, cancelled in set-up", func(p *connEnv) error {
		ctx, cancel := context.WithCancel(p.ctx)
		return p.accept(p.request(cm.Options{}), ctx, cm.Options{Setup: func(*cm.Endpoint) error { cancel(); return nil }})
	}, context.Canceled},
	{"accept a request whose sender falls silent", func(p *connEnv) error {
		return p.accept(p.silentRequest(), p.shortContext(), cm.Options{})
	}, context.DeadlineExceeded},
	{"accept a request with a failing set-up", func(p *connEnv) error {
		return p.accept(p.request(cm.Options{}), p.ctx, cm.Options{Setup: failSetup})
	}, errSetup},
	{"accept a request with too much private data", func(p *connEnv) error {
		return p.accept(p.request(cm.Options{}), p.ctx, cm.Options{PrivateData: make([]byte, 256)})
	}, cm.ErrPrivateData},
	{"accept a request twice", func(p *connEnv) error {
		r := p.request(cm.Options{})
		if err := p.accept(r, p.ctx, cm.Options{}); err != nil {
			p.Fatal(err)
		}
		return p.accept(r, p.ctx, cm.Options{})
	}, verbs.ErrClosed},
	{"reject a request twice", func(p *connEnv) error {
		r := p.request(cm.Options{})
		if err := r.Reject(nil); err != nil {
			p.Fatal(err)
		}
		return r.Reject(nil)
	}, verbs.ErrClosed},
	{"reject with too much private data", func(p *connEnv) error {
		r := p.request(cm.Options{})
		defer r.Reject(nil)
		return r.Reject(make([]byte, 256))
	}, cm.ErrPrivateData},

	{"wait for completions, cancelled", func(p *connEnv) error {
		e := p.endpoint()
		return errOf(e.RecvCQ.PollWait(p.shortContext(), make([]verbs.WC, 1)))
	}, context.DeadlineExceeded},
	{"wait for completions of a connection that ends", func(p *connEnv) error {
		e := p.endpoint()
		if _, err := e.QP.PostRecv(verbs.RecvWR{}); err != nil {
			p.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, e.Disconnect)
		wc := make([]verbs.WC, 1)
		if _, err := e.RecvCQ.PollWait(p.ctx, wc); err != nil {
			return err
		}
		return wc[0].Err()
	}, verbs.WCFlushErr},
	{"wait for completions of a connection that is closed", func(p *connEnv) error {
		e := p.endpoint()
		time.AfterFunc(20*time.Millisecond, func() { e.Close() })
		return errOf(e.RecvCQ.PollWait(p.ctx, make([]verbs.WC, 1)))
	}, verbs.ErrClosed},
	{"send on a closed connection", func(p *connEnv) error {
		e := p.endpoint()
		e.Close()
		return errOf(e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}))
	}, verbs.ErrClosed},
}

// endpoint returns an established connection.
func (p *connEnv) endpoint() *cm.Endpoint {
	p.serve(func(r *cm.Request) error {
		e, err := r.Accept(p.ctx, cm.Options{})
		if err == nil {
			<-e.Done()
			e.Close()
		}
		return err
	})
	e, err := cm.Dial(p.ctx, p.addr())
	if err != nil {
		p.Fatal(err)
	}
	labtest.Close(p, e)
	return e
}

// silentRequest returns a request of a peer that never confirms.
func (p *connEnv) silentRequest() *cm.Request {
	id := labtest.NewID(p, 0)
	await := func(want cm.EventType, err error) {
		if err != nil {
			p.Fatal(err)
		}
		if e, err := id.Channel().Next(p.ctx); err != nil || e.Type != want {
			p.Fatal(e, err)
		}
	}
	await(cm.AddrResolved, id.ResolveAddr(netip.AddrPort{}, p.l.Addr().AddrPort, time.Second))
	await(cm.RouteResolved, id.ResolveRoute(time.Second))
	if err := id.Connect(cm.ConnParam{QPNum: 99}); err != nil {
		p.Fatal(err)
	}
	r, err := p.l.Accept(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	return r
}

// TestBadConnections passes bad input of every kind to cm, and cancels at every stage.
func TestBadConnections(t *testing.T) {
	labtest.RequireLong(t)
	checkNoGrowth(t, func(t *testing.T) {
		for _, c := range connCases {
			t.Run(c.name, func(t *testing.T) {
				p := newConnEnv(t)
				err := c.run(p)
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if p.ctx.Err() != nil {
					t.Errorf("took its whole time")
				}
				t.Log(err)
			})
		}
	})
}

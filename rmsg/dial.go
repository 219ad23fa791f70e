package rmsg

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/cm"
)

// Dialer makes connections. The zero value dials as [Dial] does. A Dialer must not be copied
// after its first use.
type Dialer struct {
	ConnOptions
	// Loop is the loop of the sockets. If it is nil, each socket gets its own loop
	// with Options, run by a goroutine until the socket has ended.
	Loop    *Loop
	Options Options // used if Loop is nil
	// LocalAddr, ResolveTimeout, Resolver and TOS are as in [cm.Dialer].
	LocalAddr      netip.AddrPort
	ResolveTimeout time.Duration
	Resolver       *net.Resolver
	TOS            uint8

	dials  atomic.Uint64
	origin origin
}

// Dial connects to addr, "10.9.0.1:7471" or with a name, and waits until the socket is
// established. The socket gets its own loop with default options.
func Dial(ctx context.Context, addr string) (*Socket, error) { return new(Dialer).Dial(ctx, addr) }

// Dial connects to addr and waits until the socket is established. ctx bounds the whole
// dial; it does not affect an established socket. If d.Loop is set, another goroutine
// must run it.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Socket, error) {
	const op = "dial"
	if d.Loop != nil {
		if err := d.Loop.inCallback(); err != nil {
			return nil, fail(op, addr, err)
		}
	}
	s, err := d.connect(addr)
	if err != nil {
		return nil, fail(op, addr, err)
	}
	if err := s.waitEstablished(ctx); err != nil {
		s.Close()
		return nil, fail(op, addr, err)
	}
	return s, nil
}

// Connect starts to connect to addr and returns without waiting. The loop then calls
// Established or Disconnected; [Socket.Wait] waits for that.
func (d *Dialer) Connect(addr string) (*Socket, error) {
	s, err := d.connect(addr)
	return s, fail("connect to", addr, err)
}

func (d *Dialer) connect(addr string) (s *Socket, err error) {
	d.dials.Add(1)
	defer func() {
		if err != nil {
			d.origin.failed.Add(1)
		}
	}()
	l, err := loopOrNew(d.Loop, d.Options)
	if err != nil {
		return nil, err
	}
	s, err = d.start(l, addr)
	if err != nil {
		l.closeUnused()
	}
	return s, err
}

func (d *Dialer) start(l *Loop, addr string) (*Socket, error) {
	private, err := l.hello(d.PrivateData)
	if err != nil {
		return nil, err
	}
	s := newSocket(l, addr, true, d.ConnOptions)
	dialer := cm.Dialer{
		LocalAddr: d.LocalAddr, ResolveTimeout: d.ResolveTimeout, ConnectTimeout: -1,
		Resolver: d.Resolver, TOS: d.TOS, Transport: l.opt.Transport,
	}
	return s, s.start(&d.origin, func(ctx context.Context, opt cm.Options) (*cm.Endpoint, error) {
		dialer.Options = opt
		dialer.PrivateData = private
		return dialer.Dial(ctx, addr)
	})
}

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
	// Loop is the loop of the connections. If it is nil, each connection gets its own loop
	// with Options, run by a goroutine until the connection has ended.
	Loop *Loop
	Options
	// PrivateData is sent to the peer, which reads it with [Request.PrivateData]. RoCE carries
	// 36 bytes, and 176 in an acceptance, iWARP 235.
	PrivateData []byte
	// LocalAddr, ResolveTimeout, Resolver and TOS are as in [cm.Dialer].
	LocalAddr      netip.AddrPort
	ResolveTimeout time.Duration
	Resolver       *net.Resolver
	TOS            uint8

	dials  atomic.Uint64
	origin origin
}

// Dial connects to addr, "10.9.0.1:7471" or with a name, and waits until the connection is
// established. The connection gets its own loop with default options.
func Dial(ctx context.Context, addr string) (*Conn, error) { return new(Dialer).Dial(ctx, addr) }

// Dial connects to addr and waits until the connection is established. ctx bounds the whole dial;
// it does not affect an established connection. If d.Loop is set, another goroutine must run it.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	c, err := d.connect(addr)
	if err == nil {
		if err = c.waitEstablished(ctx); err == nil {
			return c, nil
		}
		c.Close()
	}
	return nil, fail("dial", addr, err)
}

// Connect is a Dial that does not wait, for callbacks: the loop calls Established or Disconnected.
func (d *Dialer) Connect(addr string) (*Conn, error) {
	c, err := d.connect(addr)
	return c, fail("connect to", addr, err)
}

func (d *Dialer) connect(addr string) (*Conn, error) {
	d.dials.Add(1)
	l, err := loopOrNew(d.Loop, d.Options)
	if err == nil {
		var c *Conn
		if c, err = d.start(l, addr); err == nil {
			return c, nil
		}
		l.closeUnused()
	}
	d.origin.failed.Add(1)
	return nil, err
}

func (d *Dialer) start(l *Loop, addr string) (*Conn, error) {
	private, err := l.hello(d.PrivateData)
	if err != nil {
		return nil, err
	}
	c := newConn(l, addr, true)
	dialer := cm.Dialer{
		LocalAddr: d.LocalAddr, ResolveTimeout: d.ResolveTimeout, ConnectTimeout: -1,
		Resolver: d.Resolver, TOS: d.TOS, Transport: l.opt.Transport,
	}
	return c, c.start(&d.origin, func(ctx context.Context, opt cm.Options) (*cm.Endpoint, error) {
		dialer.Options = opt
		dialer.PrivateData = private
		return dialer.Dial(ctx, addr)
	})
}

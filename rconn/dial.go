package rconn

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// Dialer makes connections. The zero value dials as [Dial] does. A Dialer must not be copied
// after its first use.
type Dialer struct {
	Options
	// LocalAddr, ResolveTimeout, ConnectTimeout, Resolver, TOS and Transport are as in [cm.Dialer].
	LocalAddr      netip.AddrPort
	ResolveTimeout time.Duration
	ConnectTimeout time.Duration
	Resolver       *net.Resolver
	TOS            uint8
	Transport      *cm.Transport

	dials, failed atomic.Uint64
	tally         tally
}

// Dial connects to addr, "10.9.0.1:7471" or a name, with defaults.
func Dial(ctx context.Context, addr string) (*Conn, error) { return new(Dialer).Dial(ctx, addr) }

// Dial connects to addr, "10.9.0.1:7471" or a name. ctx bounds the dial alone. On iWARP the side
// that dialed must be the first to send (RFC 5044).
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	d.dials.Add(1)
	c, err := d.dial(ctx, addr)
	if err != nil {
		d.failed.Add(1)
		return nil, err
	}
	return c.established(&d.tally), nil
}

func (d *Dialer) dial(ctx context.Context, addr string) (*Conn, error) {
	var c *Conn
	opt, err := d.lower(&c)
	if err != nil {
		return nil, &verbs.Error{Op: "dial", Object: addr, Err: err}
	}
	_, err = (&cm.Dialer{
		Options: opt, LocalAddr: d.LocalAddr, ResolveTimeout: d.ResolveTimeout, ConnectTimeout: d.ConnectTimeout,
		Resolver: d.Resolver, TOS: d.TOS, Transport: d.Transport,
	}).Dial(ctx, addr)
	if err != nil {
		c.discard()
	}
	return c, err
}

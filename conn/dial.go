package conn

import (
	"context"
	"net/netip"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// Dialer makes connections. The zero value is usable.
type Dialer struct {
	Options
	// LocalAddr is where to connect from, which chooses the device; the zero
	// value leaves it to routing.
	LocalAddr netip.AddrPort
	// ConnectTimeout bounds the handshake, see [cm.Dialer].
	ConnectTimeout time.Duration
}

// Dial connects to addr, "10.9.0.1:7471" or a name, with the zero Dialer.
func Dial(ctx context.Context, addr string, opt Options) (*Conn, error) {
	return Dialer{Options: opt}.Dial(ctx, addr)
}

// Dial connects to addr, "10.9.0.1:7471" or a name. ctx bounds all of it; it
// does nothing to a connection that is up. On iWARP the side that dialed must be
// the first to send (RFC 5044).
func (d Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	opt, err := d.withDefaults()
	if err != nil {
		return nil, &verbs.Error{Op: "dial", Object: addr, Err: err}
	}
	var c *Conn
	dialer := cm.Dialer{LocalAddr: d.LocalAddr, ConnectTimeout: d.ConnectTimeout}
	dialer.Options = opt.endpoint(func(e *cm.Endpoint) (err error) {
		c, err = newConn(e, opt)
		return err
	})
	if _, err := dialer.Dial(ctx, addr); err != nil {
		return nil, err
	}
	return c.up(), nil
}

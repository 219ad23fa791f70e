package hosts

import (
	"context"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rconn"
)

// connLayer is conn: memory to put to, get from and count in, and messages that
// come back.
var connLayer = layer{name: "rconn", serve: serveConn, dial: dialConn, died: cmLayer.died}

// connEnd is one end: a region the peer may use, and one for messages, of which
// the first half is received into.
type connEnd struct {
	*rconn.Conn
	region, box *rconn.LocalRegion
	counts      bool
	count       uint64
}

func (c *connEnd) options() rconn.Options {
	return rconn.Options{Setup: func(cn *rconn.Conn) (err error) {
		c.Conn = cn
		access := verbs.Access(rconn.ReadWrite)
		if c.counts = cn.PD().Context().Probe("atomics") == nil; c.counts {
			access |= rconn.RemoteAtomic
		}
		if c.region, err = cn.Alloc(room+8, access); err != nil {
			return err
		}
		if c.box, err = cn.Alloc(2*message, rconn.LocalWrite); err != nil {
			return err
		}
		if err := cn.Announce(1, c.region.All()); err != nil {
			return err
		}
		return cn.PostRecv(0, c.box.Span(0, message))
	}}
}

func serveConn(ctx context.Context, addr string) (string, error) {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return "", err
	}
	go func() {
		defer l.Close()
		listen(func() (*rconn.Request, error) { return l.Accept(ctx) }, func(req *rconn.Request) {
			var c connEnd
			cn, err := req.Accept(ctx, c.options())
			if err != nil {
				return
			}
			defer cn.Close()
			for err == nil {
				var b []byte
				if b, err = c.receive(ctx); err == nil {
					err = c.send(ctx, b)
				}
			}
		})
	}()
	return l.Addr().String(), nil
}

func dialConn(ctx context.Context, addr string) (session, error) {
	var c connEnd
	cn, err := (&rconn.Dialer{Options: c.options()}).Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if len(cn.Adverts()) != 1 {
		cn.Close()
		return nil, fmt.Errorf("%d advertisements", len(cn.Adverts()))
	}
	return &c, nil
}

func (c *connEnd) send(ctx context.Context, b []byte) error {
	copy(c.box.Bytes()[message:], b)
	if err := c.PostSend(0, verbs.SendSignaled, c.box.Span(message, len(b))); err != nil {
		return err
	}
	return c.await(ctx, rconn.Sends, nil)
}

func (c *connEnd) await(ctx context.Context, d rconn.Direction, n *uint32) error {
	var wc [1]verbs.WC
	if err := c.Await(ctx, d, wc[:]); err != nil {
		return err
	}
	if n != nil {
		*n = wc[0].ByteLen
	}
	return wc[0].Err()
}

func (c *connEnd) receive(ctx context.Context) ([]byte, error) {
	var n uint32
	if err := c.await(ctx, rconn.Recvs, &n); err != nil {
		return nil, err
	}
	b := append([]byte(nil), c.box.Bytes()[:n]...)
	return b, c.PostRecv(0, c.box.Span(0, message))
}

func (c *connEnd) round(ctx context.Context, number, n int) error {
	n = min(n, room)
	data, got := fill(make([]byte, n), number), make([]byte, n)
	at := c.Adverts()[0]
	if err := c.Put(ctx, at.At(0), data); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if err := c.Get(ctx, got, at.At(0)); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if err := wrong("what was got", got, data); err != nil {
		return err
	}
	data = data[:min(n, message)]
	if err := c.send(ctx, data); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	got, err := c.receive(ctx)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if err := wrong("echo", got, data); err != nil || !c.counts {
		return err
	}
	old, err := c.Counter(at.At(room)).Add(ctx, 3)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	if old != c.count {
		return fmt.Errorf("%w: counter is %d, want %d", errData, old, c.count)
	}
	c.count += 3
	return nil
}

// poke writes nothing to the peer's memory.
func (c *connEnd) poke() { c.PostWrite(0, 0, c.Adverts()[0].At(0)) }

func (c *connEnd) Close() error { return c.Conn.Close() }

package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rconn"
)

// connEnd is one end of a connection of package rconn, which has one message
// under way each way.
type connEnd struct {
	*rconn.Conn
	in, out    *rconn.LocalRegion
	came, sent uint64
	mine, your key
}

func newConnEnd(c *rconn.Conn, mine key) (e *connEnd, err error) {
	e = &connEnd{Conn: c, mine: mine, your: mine.answers()}
	if e.in, err = c.Alloc(most, rconn.LocalWrite); err != nil {
		return nil, err
	}
	if e.out, err = c.Alloc(most, 0); err != nil {
		return nil, err
	}
	return e, e.receive()
}

// receive expects the next message, in as many pieces as its number says.
func (e *connEnd) receive() error {
	return e.PostRecv(e.came, split(e.in.All(), int(e.came%4)+1)...)
}

// split cuts a span in pieces.
func split(s rconn.Span, pieces int) (all []rconn.Span) {
	for i := range pieces {
		n := s.Len / (pieces - i)
		if n == 0 {
			continue
		}
		all = append(all, rconn.Span{Region: s.Region, Off: s.Off, Len: n})
		s.Off, s.Len = s.Off+n, s.Len-n
	}
	return all
}

// send sends the next message and waits until it is gone.
func (e *connEnd) send(ctx context.Context, pieces int) (n int, err error) {
	n = len(e.mine.message(e.sent, most, e.out.Bytes()))
	if err := e.PostSend(e.sent, verbs.SendSignaled, split(e.out.Span(0, n), pieces)...); err != nil {
		return 0, fmt.Errorf("message %d: %w", e.sent, err)
	}
	if err := e.one(ctx, rconn.Sends, e.sent); err != nil {
		return 0, fmt.Errorf("send message %d: %w", e.sent, err)
	}
	e.sent++
	return n, nil
}

// next takes the next message and expects another.
func (e *connEnd) next(ctx context.Context) (int, error) {
	var wc [1]verbs.WC
	err := e.Await(ctx, rconn.Recvs, wc[:])
	if err == nil {
		err = wc[0].Err()
	}
	if err != nil {
		return 0, fmt.Errorf("receive message %d: %w", e.came, err)
	}
	if wc[0].ID != e.came {
		return 0, fmt.Errorf("receive %d completed in place of %d", wc[0].ID, e.came)
	}
	if err := e.your.check(e.came, most, e.in.Bytes()[:wc[0].ByteLen]); err != nil {
		return 0, err
	}
	e.came++
	return int(wc[0].ByteLen), e.receive()
}

// one waits for a request.
func (e *connEnd) one(ctx context.Context, d rconn.Direction, id uint64) error {
	var wc [1]verbs.WC
	if err := e.Await(ctx, d, wc[:]); err != nil {
		return err
	}
	if err := wc[0].Err(); err != nil {
		return err
	}
	if wc[0].ID != id {
		return fmt.Errorf("request %d completed in place of %d", wc[0].ID, id)
	}
	return nil
}

func (s *side) shared() verbs.Access {
	if s.atomics() {
		return rconn.ReadWrite | rconn.RemoteAtomic
	}
	return rconn.ReadWrite
}

// serveConn answers messages, and advertises memory: some with the private data,
// some when the first message has come, as the side that dialed must be the first
// to send.
func serveConn(s *side) (service, error) {
	l, err := rconn.Listen(s.ctx, s.addr()+":0")
	if err != nil {
		return service{}, err
	}
	serve := func(ctx context.Context, req *rconn.Request) error {
		mine := key(binary.BigEndian.Uint64(req.PrivateData())).answers()
		var e *connEnd
		c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) (err error) {
			if e, err = newConnEnd(c, mine); err != nil {
				return err
			}
			first, err := c.Alloc(most, s.shared())
			if err != nil {
				return err
			}
			return c.Announce(1, first.All())
		}})
		if err != nil {
			return err
		}
		defer c.Close()
		second, err := c.Alloc(most, s.shared())
		if err != nil {
			return err
		}
		for {
			_, err := e.next(ctx)
			if err == nil && e.sent == 0 {
				if err = e.PostAdvert(99, verbs.SendSignaled, 2, second.All()); err == nil {
					err = e.one(ctx, rconn.Sends, 99)
				}
			}
			if err == nil {
				_, err = e.send(ctx, int(e.sent%3)+1)
			}
			if err != nil {
				if errors.Is(err, verbs.ErrDisconnected) || ended(ctx, c.Endpoint(), err) {
					return nil
				}
				return err
			}
		}
	}
	listen(s, "rconn", func() (*rconn.Request, error) { return l.Accept(s.ctx) }, serve)
	return service{l.Addr().String(), l.Close, nil}, nil
}

// connClient works with the memory of its peer.
type connClient struct {
	*connEnd
	s       *side
	count   *count
	regions []rconn.RemoteRegion
	local   *rconn.LocalRegion // what is written, and what is read
	steps   uint64
}

func dialConn(s *side, addr string, n *count) (client, error) {
	life := func(ctx context.Context, r *rand.Rand) (err error) {
		mine := key(r.Uint64())
		c := connClient{s: s, count: n}
		co, err := (&rconn.Dialer{Options: rconn.Options{
			Adverts: 1, PrivateData: binary.BigEndian.AppendUint64(nil, uint64(mine)),
			Setup: func(co *rconn.Conn) (err error) {
				c.connEnd, err = newConnEnd(co, mine)
				return err
			}}}).Dial(ctx, addr)
		if err != nil {
			return err
		}
		defer co.Close()
		if c.local, err = co.Alloc(2*most, rconn.LocalWrite); err != nil {
			return err
		}
		if err := c.exchange(ctx, r); err != nil {
			return fmt.Errorf("key %#x: %w", mine, err)
		}
		theirs, err := co.AwaitAdvert(ctx)
		if err != nil {
			return err
		}
		if c.regions = append(co.Adverts(), theirs); len(c.regions) != 2 || theirs.Tag != 2 {
			return fmt.Errorf("key %#x: advertised was %v", mine, c.regions)
		}
		for steps := 10 + r.IntN(80); steps > 0 && !s.stopping(); steps-- {
			switch r.IntN(5) {
			case 0:
				err = c.putGet(ctx, r)
			case 1:
				err = c.ownMemory(ctx, r)
			case 2:
				err = c.writeRead(ctx, c.local, r)
			case 3:
				if s.atomics() {
					err = c.counters(ctx, r)
					break
				}
				fallthrough
			default:
				err = c.exchange(ctx, r)
			}
			if err != nil {
				return fmt.Errorf("key %#x: %w", mine, err)
			}
			c.steps++
		}
		return nil
	}
	return client{life, func() error { return nil }}, nil
}

func (c *connClient) exchange(ctx context.Context, r *rand.Rand) error {
	n, err := c.send(ctx, 1+r.IntN(4))
	if err != nil {
		return err
	}
	m, err := c.next(ctx)
	if err != nil {
		return err
	}
	c.count.add(n)
	c.count.add(m)
	return nil
}

// target is n bytes somewhere in the peer's memory.
func (c *connClient) target(r *rand.Rand, n int) rconn.Target {
	return c.regions[r.IntN(len(c.regions))].At(c.s.somewhere(r, n))
}

// writeRead writes something, gathered from some pieces, and reads it back to
// others.
func (c *connClient) writeRead(ctx context.Context, local *rconn.LocalRegion, r *rand.Rand) error {
	b := c.mine.message(1<<32+c.steps, most, local.Bytes()[:most])
	n := max(len(b), 1)
	b = b[:n]
	to := c.target(r, n)
	back := local.Bytes()[most : most+n]
	for i := range back {
		back[i] = ^b[i]
	}
	if err := c.PostWrite(1, 0, to, split(local.Span(0, n), 1+r.IntN(4))...); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := c.PostRead(2, verbs.SendSignaled, to, split(local.Span(most, n), 1+r.IntN(4))...); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := c.one(ctx, rconn.Sends, 2); err != nil {
		return fmt.Errorf("write and read of %d bytes at %d of region %d: %w", n, to.Off, to.Region.Tag, err)
	}
	if err := differ(c.steps, c.mine, 0, back, b); err != nil {
		return fmt.Errorf("written to offset %d of region %d and read back: %w", to.Off, to.Region.Tag, err)
	}
	c.count.add(2 * n)
	return nil
}

// ownMemory is writeRead with memory that is registered for that alone.
func (c *connClient) ownMemory(ctx context.Context, r *rand.Rand) error {
	local, err := c.Register(make([]byte, 2*most), rconn.LocalWrite)
	if err != nil {
		return err
	}
	if err := c.writeRead(ctx, local, r); err != nil {
		return err
	}
	return local.Close()
}

func (c *connClient) putGet(ctx context.Context, r *rand.Rand) error {
	b := c.mine.message(2<<32+c.steps, most, make([]byte, most))
	to := c.target(r, len(b))
	if err := c.Put(ctx, to, b); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	got := make([]byte, len(b))
	if err := c.Get(ctx, got, to); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if !bytes.Equal(got, b) {
		return fmt.Errorf("put to offset %d of region %d and got: %w", to.Off, to.Region.Tag, differ(c.steps, c.mine, 0, got, b))
	}
	c.count.add(2 * len(b))
	return nil
}

// counters counts in the peer's memory.
func (c *connClient) counters(ctx context.Context, r *rand.Rand) error {
	to := c.regions[r.IntN(len(c.regions))].At(8 * r.IntN(most/8))
	n := c.Counter(to)
	old, err := n.Load(ctx)
	if err != nil {
		return err
	}
	delta, swap := r.Uint64(), r.Uint64()
	if was, err := n.Add(ctx, delta); err != nil || was != old {
		return fmt.Errorf("add: counter was %#x, not %#x: %v", was, old, err)
	}
	if was, err := n.CompareAndSwap(ctx, old+delta, swap); err != nil || was != old+delta {
		return fmt.Errorf("compare and swap: counter was %#x, not %#x: %v", was, old+delta, err)
	}
	if now, err := n.Load(ctx); err != nil || now != swap {
		return fmt.Errorf("counter is %#x, not %#x: %v", now, swap, err)
	}
	c.count.add(32)
	return nil
}

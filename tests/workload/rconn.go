package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
)

// RConn uses package rconn: it puts, gets and counts in the memory of a region that the
// server announces and of one that it advertises later, and exchanges messages one at a
// time, in pieces.
var RConn = &Layer{Name: "rconn", Listen: listenConn, Dial: dialConn, PeerGoneErrors: CM.PeerGoneErrors}

// Conn is an end of layer RConn.
type Conn struct {
	*rconn.Conn
	Out *rconn.LocalRegion // of messages

	simple
	side
	shared    []*rconn.LocalRegion // for the peer to use
	in, local *rconn.LocalRegion
	regions   []rconn.RemoteRegion // of the peer
	counters  [2]uint64            // expected values of their counters
	pieces    int                  // most that a receive may have
}

func (p *Conn) setup(c *rconn.Conn) (err error) {
	p.Conn = c
	if p.in, err = c.Alloc(message, rconn.LocalWrite); err != nil {
		return err
	}
	if p.Out, err = c.Alloc(message, 0); err != nil {
		return err
	}
	dev := c.Endpoint().PD.Context()
	_, p.atomics = remoteAccess(dev)
	attr, err := dev.QueryDevice()
	if err != nil {
		return err
	}
	p.pieces = min(4, attr.MaxSGE)
	return p.postRecv()
}

// allocShared allocates another region for the peer to use.
func (p *Conn) allocShared() (rconn.Span, error) {
	access, _ := remoteAccess(p.Endpoint().PD.Context())
	r, err := p.Alloc(memSize+8, access)
	if err != nil {
		return rconn.Span{}, err
	}
	p.shared = append(p.shared, r)
	return r.All(), nil
}

// postRecv posts the receive of the next message, whose number determines the number of pieces.
func (p *Conn) postRecv() error {
	return p.PostRecv(p.received, split(p.in.All(), int(p.received)%p.pieces+1)...)
}

// split cuts a span into pieces.
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

// randomSplit cuts a span into 1 to 4 pieces.
func (p *Conn) randomSplit(s rconn.Span) []rconn.Span { return split(s, 1+p.rand.IntN(4)) }

// await waits for a request.
func (p *Conn) await(ctx context.Context, d rconn.Direction, id uint64) (n int, err error) {
	var wc [1]verbs.WC
	if err := p.Await(ctx, d, wc[:]); err != nil {
		return 0, p.addReason(err)
	}
	if err = wc[0].Err(); d == rconn.Sends {
		err = cm.SendError(&wc[0])
	}
	if err == nil && wc[0].ID != id {
		err = fmt.Errorf("request %d completed, want %d", wc[0].ID, id)
	}
	return int(wc[0].ByteLen), p.addReason(err)
}

func (p *Conn) addReason(err error) error { return withReason(err, p.Endpoint()) }

// post sends the next message, which is in Out, and waits for its completion.
func (p *Conn) post(ctx context.Context, n int) error {
	if err := p.Post(rconn.Send(p.randomSplit(p.Out.Span(0, n))...).With(p.sent, verbs.SendSignaled)); err != nil {
		return p.addReason(fmt.Errorf("send message %d: %w", p.sent, err))
	}
	if _, err := p.await(ctx, rconn.Sends, p.sent); err != nil {
		return fmt.Errorf("send message %d: %w", p.sent, err)
	}
	p.sent++
	return nil
}

func (p *Conn) send(ctx context.Context, n int) error {
	p.mine.Fill(p.Out.Bytes()[:n], p.sent)
	return p.post(ctx, n)
}

func (p *Conn) sendControl(ctx context.Context, b []byte) error {
	return p.post(ctx, copy(p.Out.Bytes(), b))
}

// receive returns the next message.
func (p *Conn) receive(ctx context.Context) ([]byte, error) {
	n, err := p.await(ctx, rconn.Recvs, p.received)
	if err != nil {
		return nil, fmt.Errorf("receive message %d: %w", p.received, err)
	}
	b := bytes.Clone(p.in.Bytes()[:n])
	p.received++
	return b, p.postRecv()
}

func listenConn(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return Serve(ctx, l, l.Accept, func(ctx context.Context, req *rconn.Request) error {
		p := &Conn{side: newSide(Key(binary.BigEndian.Uint64(req.PrivateData())).Peer())}
		c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
			if err := p.setup(c); err != nil {
				return err
			}
			first, err := p.allocShared()
			if err != nil {
				return err
			}
			return c.Announce(1, first)
		}})
		if err != nil {
			return err
		}
		defer c.Close()
		second, err := p.allocShared()
		for err == nil {
			err = p.serveRound(ctx, advertiser{p, second}, p.shared[0].Bytes(), p.shared[1].Bytes())
		}
		return unlessPeerClosed(ctx, c.Endpoint(), err)
	}, report, nil), nil
}

// advertiser is a Conn that advertises a region before its first message, which follows the
// peer's first: the side that dialed must send first.
type advertiser struct {
	*Conn
	region rconn.Span
}

func (p advertiser) sendControl(ctx context.Context, b []byte) error {
	if p.sent == 0 {
		const id = 99
		if err := p.Post(rconn.Advert(2, p.region).With(id, verbs.SendSignaled)); err != nil {
			return p.addReason(err)
		}
		if _, err := p.await(ctx, rconn.Sends, id); err != nil {
			return err
		}
	}
	return p.Conn.sendControl(ctx, b)
}

func dialConn(ctx context.Context, addr string) (Session, error) {
	p := &Conn{side: newSide(Key(rand.Uint64()))}
	c, err := (&rconn.Dialer{Options: rconn.Options{
		Options: cm.Options{PrivateData: binary.BigEndian.AppendUint64(nil, uint64(p.mine))}, Adverts: 1, Setup: p.setup,
	}}).Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if p.regions = c.Adverts(); len(p.regions) != 1 {
		err = fmt.Errorf("%d advertisements", len(p.regions))
	} else {
		p.local, err = c.Alloc(2*memSize, rconn.LocalWrite)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// Round writes to the peer's memory, reads it back, and reads the peer's answer there; it
// exchanges messages, and counts.
func (p *Conn) Round(ctx context.Context, n int) error {
	n = p.length(p.Endpoint().PD.Context(), n)
	i, seq := p.rand.IntN(len(p.regions)), p.sent
	off := p.randomOffset(n)
	at := p.regions[i].At(off)
	data := p.mine.Fill(make([]byte, n), seq)
	back, err := p.writeAndReadBack(ctx, at, data)
	if err == nil {
		err = p.mine.Check("memory, read back,", back, seq, n)
	}
	if err != nil {
		return fmt.Errorf("write and read back: %w", err)
	}
	err = p.clientRound(ctx, p, task{Region: uint32(i), Off: uint32(off), N: uint32(n)}, 3, 1, func() ([]byte, error) {
		if len(p.regions) == 1 {
			r, err := p.AwaitAdvert(ctx)
			if err != nil {
				return nil, p.addReason(err)
			}
			if p.regions = append(p.regions, r); r.Tag != 2 {
				return nil, fmt.Errorf("%w: regions %v", ErrData, p.regions)
			}
		}
		return data, p.addReason(p.Get(ctx, data, at))
	})
	if err != nil || !p.atomics {
		return err
	}
	c, want := p.Counter(p.regions[i].At(memSize)), &p.counters[i]
	err = p.checkAtomics(want, func(delta uint64) (uint64, error) {
		return c.Add(ctx, delta)
	}, func(old, value uint64) (uint64, error) {
		return c.CompareAndSwap(ctx, old, value)
	})
	if err == nil {
		var now uint64
		if now, err = c.Load(ctx); err == nil && now != *want {
			err = fmt.Errorf("%w: counter is %#x, want %#x", ErrData, now, *want)
		}
	}
	return p.addReason(err)
}

// writeAndReadBack writes to the peer's memory and reads it back: with Put and Get, or gathered
// from some pieces and scattered to others, of existing memory or of memory that is registered just
// for this.
func (p *Conn) writeAndReadBack(ctx context.Context, at rconn.Target, data []byte) (back []byte, err error) {
	n := len(data)
	kind := p.rand.IntN(3)
	if kind == 0 {
		back = make([]byte, n)
		if err = p.Put(ctx, at, data); err == nil {
			err = p.Get(ctx, back, at)
		}
		return back, p.addReason(err)
	}
	local := p.local
	if kind == 1 {
		if local, err = p.Register(make([]byte, 2*memSize), rconn.LocalWrite); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, local.Close()) }()
	}
	copy(local.Bytes(), data)
	back = local.Bytes()[memSize:][:n]
	clear(back)
	err = p.Post(rconn.Write(at, p.randomSplit(local.Span(0, n))...).With(1, 0))
	if err == nil {
		err = p.Post(rconn.Read(at, p.randomSplit(local.Span(memSize, n))...).With(2, 0))
	}
	if err == nil { // reading one more byte ensures that rxe has finished a READ
		err = p.Post(rconn.Read(at, local.Span(memSize, 1)).With(3, verbs.SendSignaled))
	}
	if err == nil {
		_, err = p.await(ctx, rconn.Sends, 3)
	}
	return back, p.addReason(err)
}

// Poke writes no bytes to the peer's memory.
func (p *Conn) Poke() { p.Post(rconn.Write(p.Adverts()[0].At(0))) }

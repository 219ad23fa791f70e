package rconn

import (
	"context"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// The helpers below work through memory of the Conn's own: a few chunks, so that
// one is copied while others are on their way; and at its end 8 bytes for
// atomics.
const (
	chunkSize  = 64 << 10
	chunks     = 4
	scratchOff = chunks * chunkSize
	proof      = chunks // the op of what follows a READ
	smallMTU   = 256    // bytes that are one packet on any path
)

// copier is what the helpers, one at a time, work with.
type copier struct {
	turn   chan struct{}
	region *LocalRegion
	ops    [chunks + 1]op // by chunk: the request that uses it
}

func (p *copier) init() { p.turn = make(chan struct{}, 1) }

// enter waits for the helpers' turn, and for requests of one that gave up.
func (c *Conn) enter(ctx context.Context) (exit func(), err error) {
	p := &c.copy
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	exit = func() { <-p.turn }
	if c.closed.Load() {
		exit()
		return nil, verbs.ErrClosed
	}
	if p.region == nil {
		if p.region, err = c.Alloc(scratchOff+8, LocalWrite); err != nil {
			exit()
			return nil, err
		}
	}
	for i := range p.ops {
		if err = c.finish(ctx, i); err != nil {
			exit()
			return nil, err
		}
	}
	return exit, nil
}

// start posts a request that uses a chunk.
func (c *Conn) start(ctx context.Context, i int, r request, s Span) error {
	o := &c.copy.ops[i]
	*o = op{}
	r.op = o
	b := &c.send
	spans := [...]Span{s}
	var posted error
	err := b.wait(ctx, func() bool { // for room
		posted = b.post(&r, spans[:])
		return posted != verbs.ErrQueueFull
	})
	if err == nil {
		err = posted
	}
	o.busy = err == nil
	return err
}

// finish waits for the request that uses a chunk.
func (c *Conn) finish(ctx context.Context, i int) error {
	o := &c.copy.ops[i]
	if !o.busy {
		return nil
	}
	if err := c.send.wait(ctx, func() bool { return o.done }); err != nil {
		return err
	}
	o.busy = false
	return cm.SendError(&o.wc)
}

func (c *Conn) chunk(i, n int) Span { return c.copy.region.Span(i*chunkSize, n) }

// Put copies b to the peer's memory and waits until it is there, as
// [Conn.Fence] does. b is free for reuse after it.
func (c *Conn) Put(ctx context.Context, to Target, b []byte) error {
	if err := c.put(ctx, to, b); err != nil {
		return c.fail("put to", err)
	}
	return nil
}

func (c *Conn) put(ctx context.Context, to Target, b []byte) error {
	if err := to.check(len(b), verbs.AccessRemoteWrite); err != nil {
		return err
	}
	exit, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer exit()
	for i := 0; len(b) > 0; i = (i + 1) % chunks {
		if err := c.finish(ctx, i); err != nil {
			return err
		}
		s := c.chunk(i, min(len(b), chunkSize))
		copy(s.bytes(), b)
		if err := c.start(ctx, i, request{opcode: verbs.OpRDMAWrite, target: to}, s); err != nil {
			return err
		}
		b, to.Off = b[s.Len:], to.Off+s.Len
	}
	for i := range chunks {
		if err := c.finish(ctx, i); err != nil {
			return err
		}
	}
	return c.fence(ctx, to)
}

// Get copies from the peer's memory until b is full.
func (c *Conn) Get(ctx context.Context, b []byte, from Target) error {
	if err := c.get(ctx, b, from); err != nil {
		return c.fail("get from", err)
	}
	return nil
}

func (c *Conn) get(ctx context.Context, b []byte, from Target) error {
	if err := from.check(len(b), verbs.AccessRemoteRead); err != nil {
		return err
	}
	exit, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer exit()
	// sent is how much has been asked for, got how much of that has come.
	for i, sent, got := 0, 0, 0; got < len(b); i = (i + 1) % chunks {
		if c.copy.ops[i].busy {
			if err := c.finish(ctx, i); err != nil {
				return err
			}
			got += copy(b[got:], c.chunk(i, chunkSize).bytes())
		}
		if n := min(len(b)-sent, chunkSize); n > 0 {
			at := Target{from.Region, from.Off + sent}
			if err := c.start(ctx, i, request{opcode: verbs.OpRDMARead, target: at}, c.chunk(i, n)); err != nil {
				return err
			}
			if sent += n; sent == len(b) && sent > smallMTU {
				if err := c.prove(ctx, from); err != nil {
					return err
				}
			}
		}
	}
	return c.finish(ctx, proof)
}

// prove reads a byte after other READs. rxe may call a READ of more than one packet
// done that was not, and break the QP then: it was if a request that follows it
// succeeds. (After one of no bytes rxe refuses to answer a READ again.) siw completes
// later requests first.
func (c *Conn) prove(ctx context.Context, at Target) error {
	if c.iwarp {
		return nil
	}
	return c.start(ctx, proof, request{opcode: verbs.OpRDMARead, target: at}, c.copy.region.Span(scratchOff, 1))
}

// bytes is the memory that a span names.
func (s Span) bytes() []byte { return s.Region.Bytes()[s.Off:][:s.Len] }

// Fence waits until all that was posted before it has arrived: WRITEs are in the
// peer's memory, SENDs in its receives. Their own completions tell that on RoCE
// only; on iWARP they tell that the local memory is free for reuse. The proof is
// a READ, which the peer answers after all that came before it: an empty one, or
// on iWARP one of a byte of the given region. A Fence before Disconnect or Close
// sees to it that nothing is lost. A SEND that waits for a receive holds it up.
func (c *Conn) Fence(ctx context.Context, r RemoteRegion) error {
	exit, err := c.enter(ctx)
	if err == nil {
		err = c.fence(ctx, r.At(0))
		exit()
	}
	if err != nil {
		return c.fail("fence", err)
	}
	return nil
}

// fence does not insist on the right to read: siw reads without, and others read
// nothing.
func (c *Conn) fence(ctx context.Context, at Target) error {
	at.Region.Access |= verbs.AccessRemoteRead
	if err := c.start(ctx, 0, request{opcode: verbs.OpRDMARead, target: at}, c.chunk(0, 0)); err != nil {
		return err
	}
	return c.finish(ctx, 0)
}

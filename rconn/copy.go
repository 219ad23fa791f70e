package rconn

import (
	"context"
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// The helpers below use memory of the Conn: a few chunks, so that one is copied while
// others are transferred, and 8 bytes for atomics at its end.
const (
	chunkSize  = 64 << 10
	chunks     = 4
	scratchOff = chunks * chunkSize
	confirmOp  = chunks // index of the op of the request that follows a READ
	smallMTU   = 256    // bytes that fit one packet on any path
)

// copier is the state of the helpers. One of them runs at a time.
type copier struct {
	sem    chan struct{}
	region *LocalRegion
	ops    [chunks + 1]op // by chunk: the request that uses it
}

func (p *copier) init() { p.sem = make(chan struct{}, 1) }

// acquireCopier waits for its turn, and for requests of a helper whose context has ended.
func (c *Conn) acquireCopier(ctx context.Context) (release func(), err error) {
	p := &c.copy
	select {
	case p.sem <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release = func() { <-p.sem }
	if c.closed.Load() {
		release()
		return nil, verbs.ErrClosed
	}
	if p.region == nil {
		if p.region, err = c.Alloc(scratchOff+8, LocalWrite); err != nil {
			release()
			return nil, err
		}
	}
	for i := range p.ops {
		if err = c.finishOp(ctx, i); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// startOp posts a request that uses chunk i, and waits for room in the queue.
func (c *Conn) startOp(ctx context.Context, i int, r request, s Span) error {
	o := &c.copy.ops[i]
	*o = op{}
	r.op = o
	q := &c.send
	spans := [...]Span{s}
	var posted error
	stalled := false
	err := q.wait(ctx, func() bool { // for room
		posted = q.post(&r, spans[:])
		full := errors.Is(posted, verbs.ErrQueueFull)
		if full && !stalled {
			stalled = true
			q.stalls++
		}
		return !full
	})
	if err == nil {
		err = posted
	}
	o.busy = err == nil
	return err
}

// finishOp waits for the request that uses chunk i.
func (c *Conn) finishOp(ctx context.Context, i int) error {
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

// Put copies b to the peer's memory and waits until it has arrived, see
// [Conn.AwaitDelivery]. b need not be registered, can be as long as the region, and may
// be reused after Put. Beyond the region's end Put fails with [verbs.ErrRange].
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
	release, err := c.acquireCopier(ctx)
	if err != nil {
		return err
	}
	defer release()
	for i := 0; len(b) > 0; i = (i + 1) % chunks {
		if err := c.finishOp(ctx, i); err != nil {
			return err
		}
		s := c.chunk(i, min(len(b), chunkSize))
		copy(s.bytes(), b)
		if err := c.startOp(ctx, i, request{wr: verbs.SendWR{Opcode: verbs.OpRDMAWrite}, at: to, targeted: true}, s); err != nil {
			return err
		}
		b, to.Off = b[s.Len:], to.Off+s.Len
	}
	for i := range chunks {
		if err := c.finishOp(ctx, i); err != nil {
			return err
		}
	}
	return c.awaitDelivery(ctx, to)
}

// Get copies from the peer's memory until b is full. As with Put, b need not be
// registered.
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
	release, err := c.acquireCopier(ctx)
	if err != nil {
		return err
	}
	defer release()
	// sent counts the bytes requested, got those that have arrived.
	for i, sent, got := 0, 0, 0; got < len(b); i = (i + 1) % chunks {
		if c.copy.ops[i].busy {
			if err := c.finishOp(ctx, i); err != nil {
				return err
			}
			got += copy(b[got:], c.chunk(i, chunkSize).bytes())
		}
		if n := min(len(b)-sent, chunkSize); n > 0 {
			at := Target{from.Region, from.Off + sent}
			if err := c.startOp(ctx, i, request{wr: verbs.SendWR{Opcode: verbs.OpRDMARead}, at: at, targeted: true}, c.chunk(i, n)); err != nil {
				return err
			}
			if sent += n; sent == len(b) && sent > smallMTU {
				if err := c.confirmReads(ctx, from); err != nil {
					return err
				}
			}
		}
	}
	return c.finishOp(ctx, confirmOp)
}

// confirmReads reads a byte after other READs. rxe may complete a READ of more than one
// packet too early, and break the QP afterwards; the success of a later request proves
// the READ. (After an empty READ rxe refuses to answer a READ again.) siw completes later
// requests first.
func (c *Conn) confirmReads(ctx context.Context, at Target) error {
	if c.iwarp {
		return nil
	}
	return c.startOp(ctx, confirmOp, request{wr: verbs.SendWR{Opcode: verbs.OpRDMARead}, at: at, targeted: true}, c.copy.region.Span(scratchOff, 1))
}

// bytes returns the memory of a span.
func (s Span) bytes() []byte { return s.Region.Bytes()[s.Off:][:s.Len] }

// AwaitDelivery waits until all that was posted before it has arrived: WRITEs are in the
// peer's memory, SENDs in its receives. On RoCE a completion means the same; on iWARP a
// completion only means that the local memory is free for reuse. AwaitDelivery posts a
// READ, which the peer answers after all earlier requests: an empty one, or on iWARP one
// of a byte of region r. Call it before Disconnect or Close, so that no data is lost. A
// SEND for which the peer has no receive delays it.
func (c *Conn) AwaitDelivery(ctx context.Context, r RemoteRegion) error {
	release, err := c.acquireCopier(ctx)
	if err == nil {
		err = c.awaitDelivery(ctx, r.At(0))
		release()
	}
	if err != nil {
		return c.fail("await delivery to", err)
	}
	return nil
}

// awaitDelivery works without AccessRemoteRead: siw does not check it, and on RoCE
// nothing is read.
func (c *Conn) awaitDelivery(ctx context.Context, at Target) error {
	at.Region.Access |= verbs.AccessRemoteRead
	if err := c.startOp(ctx, 0, request{wr: verbs.SendWR{Opcode: verbs.OpRDMARead}, at: at, targeted: true}, c.chunk(0, 0)); err != nil {
		return err
	}
	return c.finishOp(ctx, 0)
}

package rconn

import (
	"context"
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
)

// The helpers below use memory of the Conn: a few chunks, so that one is copied while others are
// transferred, and 8 bytes for atomics at its end.
const (
	chunkSize   = 64 << 10
	chunks      = 4
	scratchOff  = chunks * chunkSize
	confirmCall = chunks // index of the call whose request follows a READ
	smallMTU    = 256    // bytes that fit one packet on any path
)

// copier is the state of the helpers. One of them runs at a time.
type copier struct {
	c      *Conn
	sem    chan struct{}
	region *LocalRegion
	calls  [chunks + 1]call // by chunk: the request that uses it
}

// call is a request of a helper, which waits until it is done.
type call struct {
	busy bool // posted, and the helper has not handled its completion
	done bool
	wc   verbs.WC
}

// run calls f when no other helper runs, and no request is left of a helper whose context ended.
func (p *copier) run(ctx context.Context, f func() error) (err error) {
	select {
	case p.sem <- struct{}{}:
	case <-ctx.Done():
		return host.Ended(ctx)
	}
	defer func() { <-p.sem }()
	if p.c.closed.Load() {
		return verbs.ErrClosed
	}
	if p.region == nil {
		if p.region, err = p.c.Alloc(scratchOff+8, LocalWrite); err != nil {
			return err
		}
	}
	for i := range p.calls {
		if err := p.finish(ctx, i); err != nil {
			return err
		}
	}
	return f()
}

// start posts a request that uses chunk i and the span, and waits for room in the queue.
func (p *copier) start(ctx context.Context, i int, op verbs.Opcode, at Target, s Span) error {
	return p.startOp(ctx, i, Op{SendWR: verbs.SendWR{Opcode: op}, At: at, Spans: []Span{s}})
}

func (p *copier) startOp(ctx context.Context, i int, o Op) error {
	call := &p.calls[i]
	call.done = false
	q := &p.c.send
	var posted error
	stalled := false
	err := q.wait(ctx, func() bool { // for room
		posted = q.post(&o, call)
		full := errors.Is(posted, verbs.ErrQueueFull)
		if full && !stalled {
			stalled = true
			q.stats.Stalls++
		}
		return !full
	})
	if err == nil {
		err = posted
	}
	call.busy = err == nil
	return err
}

// finish waits for the request that uses chunk i.
func (p *copier) finish(ctx context.Context, i int) error {
	call := &p.calls[i]
	if !call.busy {
		return nil
	}
	if err := p.c.send.wait(ctx, func() bool { return call.done }); err != nil {
		return err
	}
	call.busy = false
	return cm.SendError(&call.wc)
}

func (p *copier) chunk(i, n int) Span { return p.region.Span(i*chunkSize, n) }

// Put copies b to the peer's memory and waits until it has arrived, see
// [Conn.AwaitDelivery]. b need not be registered, and can be as long as the region.
func (c *Conn) Put(ctx context.Context, to Target, b []byte) error {
	err := to.check(len(b), verbs.AccessRemoteWrite)
	if err == nil {
		err = c.copy.run(ctx, func() error { return c.copy.put(ctx, to, b) })
	}
	return c.fail("put to", err)
}

func (p *copier) put(ctx context.Context, to Target, b []byte) error {
	for i := 0; len(b) > 0; i = (i + 1) % chunks {
		if err := host.Ended(ctx); err != nil { // a wait does not look if the completion is there
			return err
		}
		if err := p.finish(ctx, i); err != nil {
			return err
		}
		s := p.chunk(i, min(len(b), chunkSize))
		copy(s.bytes(), b)
		if err := p.start(ctx, i, verbs.OpRDMAWrite, to, s); err != nil {
			return err
		}
		b, to.Off = b[s.Len:], to.Off+s.Len
	}
	for i := range chunks {
		if err := p.finish(ctx, i); err != nil {
			return err
		}
	}
	return p.awaitDelivery(ctx, to)
}

// Get copies from the peer's memory until b is full.
func (c *Conn) Get(ctx context.Context, b []byte, from Target) error {
	err := from.check(len(b), verbs.AccessRemoteRead)
	if err == nil {
		err = c.copy.run(ctx, func() error { return c.copy.get(ctx, b, from) })
	}
	return c.fail("get from", err)
}

func (p *copier) get(ctx context.Context, b []byte, from Target) error {
	// sent counts the bytes requested, got the bytes that have arrived.
	for i, sent, got := 0, 0, 0; got < len(b); i = (i + 1) % chunks {
		if err := host.Ended(ctx); err != nil { // a wait does not look if the completion is there
			return err
		}
		if p.calls[i].busy {
			if err := p.finish(ctx, i); err != nil {
				return err
			}
			got += copy(b[got:], p.chunk(i, chunkSize).bytes())
		}
		if n := min(len(b)-sent, chunkSize); n > 0 {
			if err := p.start(ctx, i, verbs.OpRDMARead, Target{from.Region, from.Off + sent}, p.chunk(i, n)); err != nil {
				return err
			}
			// rxe may complete a READ of more than one packet too early, and break the QP
			// afterwards; the success of a later request proves the READ. It reads a byte, as after
			// an empty READ rxe refuses to answer a READ again. siw completes later requests first.
			if sent += n; sent == len(b) && sent > smallMTU && !p.c.iwarp {
				if err := p.start(ctx, confirmCall, verbs.OpRDMARead, from, p.region.Span(scratchOff, 1)); err != nil {
					return err
				}
			}
		}
	}
	return p.finish(ctx, confirmCall)
}

func (s Span) bytes() []byte { return s.Region.Bytes()[s.Off:][:s.Len] }

// AwaitDelivery waits until all requests posted before it have arrived: WRITEs are in the peer's
// memory, SENDs in its receives. On RoCE a completion means the same; on iWARP it only means that
// the local memory is free for reuse. AwaitDelivery posts a READ, which the peer answers after all
// earlier requests: an empty one, or on iWARP a byte of region r. Call it before Disconnect or
// Close, so that no data is lost.
func (c *Conn) AwaitDelivery(ctx context.Context, r RemoteRegion) error {
	return c.fail("await delivery to", c.copy.run(ctx, func() error { return c.copy.awaitDelivery(ctx, r.At(0)) }))
}

// awaitDelivery needs no AccessRemoteRead: siw does not check it, and on RoCE the READ is empty.
func (p *copier) awaitDelivery(ctx context.Context, at Target) error {
	at.Region.Access |= verbs.AccessRemoteRead
	if err := p.start(ctx, 0, verbs.OpRDMARead, at, p.chunk(0, 0)); err != nil {
		return err
	}
	return p.finish(ctx, 0)
}

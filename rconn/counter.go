package rconn

import (
	"context"
	"encoding/binary"
)

// Counter is 8 bytes of the peer's memory, in its byte order, that any number of connections may
// use at once. Accesses by the peer's own CPU are not atomic with theirs. siw has no atomics.
type Counter struct {
	c  *Conn
	at Target
}

// Counter returns the counter at a target, which must be aligned to 8 bytes and advertised with
// [RemoteAtomic].
func (c *Conn) Counter(at Target) Counter { return Counter{c, at} }

// Add adds delta to the counter and returns its value before.
func (n Counter) Add(ctx context.Context, delta uint64) (old uint64, err error) {
	return n.do(ctx, "add to counter of", FetchAdd(n.at, delta, Span{}))
}

// Load returns the value of the counter.
func (n Counter) Load(ctx context.Context) (uint64, error) {
	return n.do(ctx, "load counter of", FetchAdd(n.at, 0, Span{}))
}

// CompareAndSwap sets the counter to new if it equals old, and returns its value before,
// which equals old on success.
func (n Counter) CompareAndSwap(ctx context.Context, old, new uint64) (was uint64, err error) {
	return n.do(ctx, "swap counter of", CompareSwap(n.at, old, new, Span{}))
}

func (n Counter) do(ctx context.Context, what string, o Op) (v uint64, err error) {
	p := &n.c.copy
	err = p.run(ctx, func() error {
		o.Spans[0] = p.region.Span(scratchOff, 8)
		if err := p.startOp(ctx, 0, o); err != nil {
			return err
		}
		if err := p.finish(ctx, 0); err != nil {
			return err
		}
		v = binary.NativeEndian.Uint64(o.Spans[0].bytes())
		return nil
	})
	return v, n.c.fail(what, err)
}

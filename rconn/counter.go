package rconn

import (
	"context"
	"encoding/binary"

	"github.com/goverbs/verbs"
)

// Counter is 8 bytes of the peer's memory, in its byte order, that any number of
// connections may use at once. Accesses by the peer's own CPU are not atomic with these.
// On devices without atomics, such as siw, its methods fail with an error that matches
// [errors.ErrUnsupported].
type Counter struct {
	c  *Conn
	at Target
}

// Counter returns the counter at a target in the peer's memory, which must be aligned to
// 8 bytes and advertised with [RemoteAtomic].
func (c *Conn) Counter(at Target) Counter { return Counter{c, at} }

// Add adds delta to the counter and returns its value before.
func (n Counter) Add(ctx context.Context, delta uint64) (old uint64, err error) {
	return n.do(ctx, "add to counter of", verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: delta})
}

// Load returns the value of the counter.
func (n Counter) Load(ctx context.Context) (uint64, error) {
	return n.do(ctx, "load counter of", verbs.SendWR{Opcode: verbs.OpFetchAdd})
}

// CompareAndSwap sets the counter to new if it equals old, and returns its value before,
// which equals old on success.
func (n Counter) CompareAndSwap(ctx context.Context, old, new uint64) (was uint64, err error) {
	return n.do(ctx, "swap counter of", verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: old, Swap: new})
}

func (n Counter) do(ctx context.Context, what string, wr verbs.SendWR) (uint64, error) {
	v, err := n.run(ctx, wr)
	if err != nil {
		return 0, n.c.fail(what, err)
	}
	return v, nil
}

func (n Counter) run(ctx context.Context, wr verbs.SendWR) (uint64, error) {
	c := n.c
	release, err := c.acquireCopier(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	s := c.copy.region.Span(scratchOff, 8)
	if err := c.startOp(ctx, 0, request{wr: wr, at: n.at, targeted: true}, s); err != nil {
		return 0, err
	}
	if err := c.finishOp(ctx, 0); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(s.bytes()), nil
}

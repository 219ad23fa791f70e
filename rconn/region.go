package rconn

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// What peers, and this side's receives and READs, may do with a region.
const (
	LocalWrite  = verbs.AccessLocalWrite
	RemoteWrite = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	RemoteRead  = verbs.AccessRemoteRead
	// RemoteAtomic is of no use on devices without atomics, such as siw.
	RemoteAtomic = verbs.AccessLocalWrite | verbs.AccessRemoteAtomic
	// ReadWrite is what every device can do.
	ReadWrite = RemoteWrite | RemoteRead
)

// LocalRegion is memory of this process that requests may name, and peers reach
// once it is advertised. Its methods may be called by several goroutines. Whoever
// made it destroys it; one that a [Conn] made is destroyed with the Conn at the
// latest.
type LocalRegion struct {
	mr     *uverbs.MR
	pd     *uverbs.PD
	access verbs.Access
	users  atomic.Int64 // requests under way that name it; negative once destroyed
}

const destroyed = math.MinInt64 / 2

// Alloc makes a region of new, zeroed memory outside the Go heap, for all
// connections of a protection domain. Destroy frees the memory.
func Alloc(pd *uverbs.PD, size int, access verbs.Access) (*LocalRegion, error) {
	mr, err := pd.AllocMR(size, access, uverbs.MROptions{})
	return newRegion(mr, pd, access, err)
}

// Register makes a region of the caller's memory, which stays where it is until
// Destroy, and the caller's after it. It must hold no Go pointers.
func Register(pd *uverbs.PD, mem []byte, access verbs.Access) (*LocalRegion, error) {
	mr, err := pd.RegisterMR(mem, access)
	return newRegion(mr, pd, access, err)
}

// Alloc is the function [Alloc] in the connection's protection domain.
func (c *Conn) Alloc(size int, access verbs.Access) (*LocalRegion, error) {
	mr, err := c.ep.AllocMR(size, access)
	return newRegion(mr, c.ep.PD, access, err)
}

// Register is the function [Register] in the connection's protection domain.
func (c *Conn) Register(mem []byte, access verbs.Access) (*LocalRegion, error) {
	mr, err := c.ep.RegisterMR(mem, access)
	return newRegion(mr, c.ep.PD, access, err)
}

func newRegion(mr *uverbs.MR, pd *uverbs.PD, access verbs.Access, err error) (*LocalRegion, error) {
	if err != nil {
		return nil, err
	}
	return &LocalRegion{mr: mr, pd: pd, access: access}, nil
}

// Bytes is the region's memory; nil once it is destroyed. Slices of memory that
// Alloc made must not be used after that.
func (r *LocalRegion) Bytes() []byte {
	if r.users.Load() < 0 {
		return nil
	}
	return r.mr.Bytes()
}

// Len is the region's length in bytes.
func (r *LocalRegion) Len() int { return r.mr.Len() }

// MR is the region as package uverbs knows it, for what is missing here.
func (r *LocalRegion) MR() *uverbs.MR { return r.mr }

// Destroy ends the region: peers reach it no longer. Memory that Alloc made is
// freed, memory given to Register is left to the caller. While requests under
// way name it, Destroy fails with [verbs.ErrInUse] and does nothing; a request is
// under way until its completion, or for one that is not signaled a later one's,
// has been polled, or its Conn closed. Destroy may be called again.
func (r *LocalRegion) Destroy() error {
	if !r.users.CompareAndSwap(0, destroyed) {
		if n := r.users.Load(); n >= 0 {
			return &verbs.Error{Op: "destroy", Object: r.String(), Err: fmt.Errorf("%w by %d requests", verbs.ErrInUse, n)}
		}
	}
	return r.mr.Close()
}

func (r *LocalRegion) String() string {
	return fmt.Sprintf("local region %#x of %d bytes", r.mr.LKey(), r.mr.Len())
}

// All is the whole region.
func (r *LocalRegion) All() Span { return Span{r, 0, r.Len()} }

// Span is n bytes of the region from off. Whether they are inside is checked
// when it is used.
func (r *LocalRegion) Span(off, n int) Span { return Span{r, off, n} }

// Span is a part of a region. Several are an SGL: what a request gathers from,
// or scatters to, in this order.
type Span struct {
	Region   *LocalRegion
	Off, Len int
}

// check says whether the span is one that requests may name that need access.
func (s Span) check(pd *uverbs.PD, need verbs.Access) error {
	r := s.Region
	switch {
	case r == nil:
		return fmt.Errorf("a span of no region: %w", verbs.ErrRange)
	case r.pd != pd:
		return fmt.Errorf("%v: %w", r, ErrForeign)
	case s.Off < 0 || s.Len < 0 || s.Off > r.Len()-s.Len || uint64(s.Len) > math.MaxUint32:
		return fmt.Errorf("bytes %d to %d+%d of %v: %w", s.Off, s.Off, s.Len, r, verbs.ErrRange)
	case r.access&need != need:
		return fmt.Errorf("%v: %w", r, ErrAccess)
	case r.users.Load() < 0:
		return fmt.Errorf("%v: %w", r, verbs.ErrClosed)
	}
	return nil
}

// hold keeps the region from being destroyed until drop.
func (r *LocalRegion) hold() error {
	if r.users.Add(1) < 0 {
		r.users.Add(-1)
		return fmt.Errorf("%v: %w", r, verbs.ErrClosed)
	}
	return nil
}

func (r *LocalRegion) drop() { r.users.Add(-1) }

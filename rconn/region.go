package rconn

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Access to a region. Other rights of package verbs can be added: AccessMWBind for
// [Bind], AccessFlushGlobal for flushes.
const (
	LocalWrite  = verbs.AccessLocalWrite // for receives and READs of this side
	RemoteWrite = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	RemoteRead  = verbs.AccessRemoteRead
	// RemoteAtomic has no use on devices without atomics, such as siw.
	RemoteAtomic = verbs.AccessLocalWrite | verbs.AccessRemoteAtomic
	// ReadWrite is what every device supports.
	ReadWrite = RemoteWrite | RemoteRead
)

// LocalRegion is memory of this process that requests can use, and peers once it is advertised. Its
// methods may be called by several goroutines. Close of a [Conn] closes the regions that it made, also
// while requests of connections that share its PD use them: NewRegion is for these.
type LocalRegion struct {
	mr     *uverbs.MR
	pd     *uverbs.PD
	access verbs.Access
	ofConn bool         // whose Close closes mr
	users  atomic.Int64 // requests in flight that use it; negative once closed

	closing sync.Mutex // held by Close
}

const closedUsers = math.MinInt64 / 2

// NewRegion makes a region of mr, which package uverbs made in pd with that access: for connections
// that share pd, and for memory such as huge pages and DMA buffers. Close closes mr. Requests are
// checked against this access, and advertisements state it: if mr has less, requests fail at the
// device, which ends the connection.
func NewRegion(pd *uverbs.PD, mr *uverbs.MR, access verbs.Access) *LocalRegion {
	return &LocalRegion{mr: mr, pd: pd, access: access}
}

// Alloc makes a region of new, zeroed memory outside the Go heap in the connection's
// protection domain. Close frees the memory.
func (c *Conn) Alloc(size int, access verbs.Access) (*LocalRegion, error) {
	mr, err := c.ep.AllocMR(size, access)
	if err != nil {
		return nil, err
	}
	return c.region(mr, access), nil
}

// Register makes a region of the caller's memory, which must hold no Go pointers, and may be
// registered any number of times. It is pinned until Close and remains the caller's after it.
func (c *Conn) Register(mem []byte, access verbs.Access) (*LocalRegion, error) {
	mr, err := c.ep.RegisterMR(mem, access)
	if err != nil {
		return nil, err
	}
	return c.region(mr, access), nil
}

// region makes a region of mr, which Close of c closes.
func (c *Conn) region(mr *uverbs.MR, access verbs.Access) *LocalRegion {
	r := NewRegion(c.ep.PD, mr, access)
	r.ofConn = true
	return r
}

// Bytes returns the region's memory, or nil after Close.
func (r *LocalRegion) Bytes() []byte {
	if r.users.Load() < 0 {
		return nil
	}
	return r.mr.Bytes()
}

// Len returns the region's length in bytes.
func (r *LocalRegion) Len() int { return r.mr.Len() }

// MR returns the region of package uverbs, for its keys and its address. Do not close it.
func (r *LocalRegion) MR() *uverbs.MR { return r.mr }

// Close ends the region: its keys become invalid, and memory that Alloc made is freed. While
// requests in flight use it, Close fails with [verbs.ErrInUse] and does nothing. A request is
// in flight until its completion, or a later one if it is not signaled, has been polled, or
// its Conn is closed.
func (r *LocalRegion) Close() error {
	if r == nil {
		return verbs.ErrClosed
	}
	r.closing.Lock()
	defer r.closing.Unlock()
	if !r.users.CompareAndSwap(0, closedUsers) {
		if n := r.users.Load(); n >= 0 {
			return &verbs.Error{Op: "close", Object: r.String(), Err: fmt.Errorf("%w by %d requests", verbs.ErrInUse, n)}
		}
		return nil
	}
	err := r.mr.Close()
	if err != nil {
		r.users.Add(-closedUsers)
	}
	if r.access&verbs.AccessMWBind != 0 && errors.Is(err, syscall.EINVAL) {
		return &verbs.Error{Op: "close", Object: r.String(), Err: err, Hint: "a memory window may be bound to it: invalidate or close that first"}
	}
	return err
}

func (r *LocalRegion) String() string {
	return fmt.Sprintf("local region %#x of %d bytes", r.mr.LKey(), r.mr.Len())
}

// All returns the whole region.
func (r *LocalRegion) All() Span { return Span{r, 0, r.Len()} }

// Span returns n bytes from off. Bounds are checked when it is used.
func (r *LocalRegion) Span(off, n int) Span { return Span{r, off, n} }

// Span is a part of a region. Several are a scatter/gather list.
type Span struct {
	Region   *LocalRegion
	Off, Len int
}

// check returns an error if requests that need access cannot use the span.
func (s Span) check(pd *uverbs.PD, need verbs.Access) error {
	r := s.Region
	switch {
	case r == nil:
		return fmt.Errorf("span without a region: %w", verbs.ErrRange)
	case r.pd != pd:
		return fmt.Errorf("%v: %w", r, ErrForeign)
	case s.Off < 0 || s.Len < 0 || s.Off > r.Len()-s.Len:
		return fmt.Errorf("bytes %d to %d+%d of %v: %w", s.Off, s.Off, s.Len, r, verbs.ErrRange)
	case r.access&need != need:
		return fmt.Errorf("%v: %w", r, ErrAccess)
	case r.users.Load() < 0 || r.ofConn && r.mr.Bytes() == nil:
		return fmt.Errorf("%v: %w", r, verbs.ErrClosed)
	}
	return nil
}

// maxSpan is the most that a request takes of a region at a time.
const maxSpan = math.MaxUint32

// acquire prevents the region from being closed until release.
func (r *LocalRegion) acquire() error {
	if r.users.Add(1) < 0 {
		r.users.Add(-1)
		return fmt.Errorf("%v: %w", r, verbs.ErrClosed)
	}
	return nil
}

func (r *LocalRegion) release() { r.users.Add(-1) }

package rconn

import (
	"fmt"

	"github.com/goverbs/verbs"
)

// RemoteRegion is memory for RDMA by the other side: memory that the peer has advertised, or of
// this side, see [Bind]. It is valid on the connection that it arrived on, and on others of the
// peer's protection domain.
type RemoteRegion struct {
	Tag    uint32 // the owner's number for it
	Addr   uint64
	Len    int
	Key    uint32
	Access verbs.Access // the AccessRemote and AccessFlush rights that the owner grants
}

// At returns the target at an offset in the region. A request uses as many bytes from there
// on as it has local memory; beyond the region's end, posting fails with [verbs.ErrRange].
func (r RemoteRegion) At(off int) Target { return Target{r, off} }

func (r RemoteRegion) String() string {
	return fmt.Sprintf("remote region %d (key %#x) of %d bytes", r.Tag, r.Key, r.Len)
}

// Target is a place in the peer's memory.
type Target struct {
	Region RemoteRegion
	Off    int
}

// check returns an error if n bytes from t on are outside the region, or may not be accessed.
func (t Target) check(n int, need verbs.Access) error {
	switch {
	case t.Off < 0 || n < 0 || t.Off > t.Region.Len-n:
		return fmt.Errorf("bytes %d to %d+%d of %v: %w", t.Off, t.Off, n, t.Region, verbs.ErrRange)
	case n > 0 && t.Region.Access&need != need:
		return fmt.Errorf("%v: %w", t.Region, ErrAccess)
	}
	return nil
}

func (t Target) addr() uint64 { return t.Region.Addr + uint64(t.Off) }

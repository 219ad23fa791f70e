package rconn

import (
	"fmt"
	"math"

	"github.com/goverbs/verbs"
)

// RemoteRegion is memory of the peer that it has advertised. It is a plain
// value, and of use only on the connection that it came by, or with a peer that
// shares its protection domain among several.
type RemoteRegion struct {
	Tag    uint32 // what the peer calls it
	Addr   uint64
	Len    int
	Key    uint32
	Access verbs.Access // what of Remote... the peer allows
}

// At is the region from an offset on, for an operation to work on as much as it
// has spans for. Whether that is inside is checked when it is used.
func (r RemoteRegion) At(off int) Target { return Target{r, off} }

func (r RemoteRegion) String() string {
	return fmt.Sprintf("remote region %d (key %#x) of %d bytes", r.Tag, r.Key, r.Len)
}

// Target is a place in the peer's memory.
type Target struct {
	Region RemoteRegion
	Off    int
}

// check says whether n bytes are there, and may be accessed.
func (t Target) check(n int, need verbs.Access) error {
	switch {
	case t.Off < 0 || uint64(n) > math.MaxUint32 || t.Off > t.Region.Len-n:
		return fmt.Errorf("bytes %d to %d+%d of %v: %w", t.Off, t.Off, n, t.Region, verbs.ErrRange)
	case n > 0 && t.Region.Access&need != need:
		return fmt.Errorf("%v: %w", t.Region, ErrAccess)
	}
	return nil
}

func (t Target) addr() uint64 { return t.Region.Addr + uint64(t.Off) }

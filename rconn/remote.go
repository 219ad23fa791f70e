package rconn

import (
	"fmt"
	"math"

	"github.com/goverbs/verbs"
)

// RemoteRegion is memory as a peer uses it: memory of the peer that it has advertised, or
// of this side, see [Conn.PostBind]. It is a plain value. It can be used only on the
// connection that it arrived on, or on others if the peer shares its protection domain
// among them.
type RemoteRegion struct {
	Tag    uint32 // the owner's number for it
	Addr   uint64
	Len    int
	Key    uint32
	Access verbs.Access // the AccessRemote and AccessFlush rights that the owner grants
}

// At returns the target at an offset in the region. An operation uses as many bytes from
// there on as it has local memory. Bounds are checked when it is posted, which fails with
// [verbs.ErrRange] if they are exceeded.
func (r RemoteRegion) At(off int) Target { return Target{r, off} }

func (r RemoteRegion) String() string {
	return fmt.Sprintf("remote region %d (key %#x) of %d bytes", r.Tag, r.Key, r.Len)
}

// Target is a place in the peer's memory.
type Target struct {
	Region RemoteRegion
	Off    int
}

// check returns an error if n bytes from t on are outside the region, or may not be
// accessed.
func (t Target) check(n int, need verbs.Access) error {
	switch {
	case t.Off < 0 || uint64(n) > math.MaxUint32 || t.Off > t.Region.Len-n:
		return fmt.Errorf("bytes %d to %d+%d of %v: %w", t.Off, t.Off, n, t.Region, verbs.ErrRange)
	case n > 0 && t.Region.Access&need != need:
		return fmt.Errorf("%v: %w", t.Region, ErrAccess)
	}
	return nil
}

// checkFor checks the target of a request that has n bytes of local memory.
func (t Target) checkFor(wr *verbs.SendWR, n int) error {
	_, remote, n := requiredAccess(wr, n)
	if remote == 0 {
		return fmt.Errorf("%v has no target: %w", wr.Opcode, verbs.ErrRange)
	}
	if a := alignment(wr.Opcode); t.addr()%a != 0 {
		return fmt.Errorf("%v at %#x: %w: it must be aligned to %d bytes", wr.Opcode, t.addr(), verbs.ErrRange, a)
	}
	return t.check(n, remote)
}

func (t Target) addr() uint64 { return t.Region.Addr + uint64(t.Off) }

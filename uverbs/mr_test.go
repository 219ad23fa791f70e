package uverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
)

// TestSGEPanics checks for which parts of a region SGE panics.
func TestSGEPanics(t *testing.T) {
	big := int64(1) << 33
	mr := &MR{size: int(big), addr: 1 << 40}
	if int64(mr.size) != big {
		t.Skip("no region is that long here")
	}
	for _, part := range [][2]int64{{0, 1 << 32}, {8, 1<<32 + 100}, {0, big + 1}, {big, 1}, {-1, 1}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("SGE(%d, %d) does not panic", part[0], part[1])
				}
			}()
			mr.SGE(int(part[0]), int(part[1]))
		}()
	}
	longest := big>>1 - 1
	if s := mr.SGE(int(big-longest), int(longest)); int64(s.Length) != longest {
		t.Errorf("the longest SGE: %+v", s)
	}
}

// TestMemoryNotFreed closes a region whose memory cannot be freed at first: the kernel's region is
// gone, and only the memory is left for the next Close.
func TestMemoryNotFreed(t *testing.T) {
	ctx, err := Open("")
	if err != nil {
		t.Skipf("needs a device: %v", err)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, MROptions{})
	if err != nil {
		t.Fatal(err)
	}
	free := mr.state.free
	mr.state.free = func() error { return syscall.ENOMEM }
	for range 2 {
		if err := mr.Close(); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("closed without freeing the memory: %v", err)
		}
		if mr.Bytes() != nil {
			t.Error("the memory of a destroyed region can be read")
		}
	}
	// The kernel gives the handle to the next region.
	next, err := pd.AllocMR(4096, verbs.AccessLocalWrite, MROptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := mr.Rereg(ReregOptions{Access: new(verbs.Access)}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("reregistered a destroyed region: %v", err)
	}
	mr.state.free = free
	for _, c := range []interface{ Close() error }{mr, next, pd, ctx} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

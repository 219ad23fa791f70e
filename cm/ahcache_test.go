//go:build linux

package cm

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// TestAHCacheKeepsRecent uses more handles than the cache keeps: it makes again those that were used longest ago. Outside of
// the lab the device is that of labtest, which other tests here import.
func TestAHCacheKeepsRecent(t *testing.T) {
	dev, err := uverbs.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	gids, err := dev.GIDTable()
	if err != nil {
		t.Fatal(err)
	}
	gid := gids[0]
	var made []uint16
	fail := errors.New("no answer")
	c := newAHCache(func(h header) (*uverbs.AH, error) {
		if made = append(made, h.slid); h.slid == 99 {
			return nil, fail
		}
		return pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, Port: uint8(gid.Port)})
	})
	use := func(slid uint16, want error) *cachedAH {
		t.Helper()
		k, err := c.acquire(t.Context(), header{slid: slid})
		if !errors.Is(err, want) {
			t.Fatalf("handle of %d: %v", slid, err)
		}
		return k
	}
	c.setLimit(2)
	held := use(1, nil)
	for _, slid := range []uint16{2, 1, 2, 3, 2, 4, 2, 3} { // 1 is in use all the time
		c.release(use(slid, nil))
	}
	for range 2 {
		use(99, fail) // a failure is not kept
	}
	c.setLimit(4)
	c.release(held)
	for _, slid := range []uint16{5, 6, 1, 5, 6} {
		c.release(use(slid, nil))
	}
	if want := []uint16{1, 2, 3, 2, 4, 2, 3, 99, 99, 5, 6}; !slices.Equal(made, want) {
		t.Errorf("handles made: %v, want %v", made, want)
	}
	if err := c.close(); err != nil || c.lru.Len() != 0 || len(c.byHeader) != 0 {
		t.Errorf("%d handles are left: %v", c.lru.Len(), err)
	}
	use(1, verbs.ErrClosed)
}

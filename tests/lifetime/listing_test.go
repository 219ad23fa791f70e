package lifetime

import (
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// TestListWhileRemoved lists and finds devices while another comes and goes: also one that is removed between two
// reads, or while one of its attributes is open, is no error.
func TestListWhileRemoved(t *testing.T) {
	labtest.RequireKernel(t)
	var listing sync.WaitGroup
	ended := make(chan struct{})
	for name, list := range map[string]func() error{
		"list": func() error { _, err := uverbs.Devices(); return err },
		"find": func() error { _, err := uverbs.Find(labtest.RXE); return err },
		"read": func() error { _, err := rdmadev.Source{}.Devices(); return err },
	} {
		listing.Go(func() {
			for n := 0; ; n++ {
				if err := list(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				select {
				case <-ended:
					t.Logf("%s: %d times", name, n)
					return
				default:
				}
			}
		})
	}
	removals := 400
	if testing.Short() {
		removals = 100
	}
	for range removals {
		labtest.Check(t, netlink.RdmaLinkAdd("going0", "siw", labtest.LinkOf(labtest.RXE)), netlink.RdmaLinkDel("going0"))
	}
	close(ended)
	listing.Wait()
}

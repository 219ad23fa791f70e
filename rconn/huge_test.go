//go:build linux

package rconn

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestAllocHuge writes a region of huge pages by RDMA if the system has any, or, in the lab, has
// any to reserve. Otherwise the error says so.
func TestAllocHuge(t *testing.T) {
	const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	if before, err := os.ReadFile(pool + "nr_hugepages"); labtest.Lab && err == nil && os.WriteFile(pool+"nr_hugepages", []byte("4"), 0o644) == nil {
		t.Cleanup(func() { os.WriteFile(pool+"nr_hugepages", before, 0o644) })
	}
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Adverts: 1}, Options{})
		pd := b.Endpoint().PD
		free, _ := os.ReadFile(pool + "free_hugepages")
		theirs, err := allocIn(pd, 3<<20, uverbs.MROptions{PageSize: 2 << 20})
		if n := strings.TrimSpace(string(free)); n == "" || n == "0" || n == "1" {
			if !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("with %q huge pages: %v", n, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		check(t, b.Post(Advert(3, theirs.All())))
		remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
		data := []byte("at the end of the region")
		check(t, a.Put(testContext(t), remote.At(theirs.Len()-len(data)), data))
		if got := theirs.Bytes()[theirs.Len()-len(data):]; string(got) != string(data) {
			t.Errorf("%q", got)
		}
	})
}

package rdmatest

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rdmadev"
)

// patience is how long CheckLeaks waits: an iWARP handshake that was abandoned takes 10 s.
var patience = 12 * time.Second

// CheckLeaks counts the objects that this process has on devices, such as queue pairs, memory
// regions and IDs of the connection manager, and those whose owner is unknown. It counts again when
// the test ends, after the functions that are registered later with t.Cleanup, and fails the test
// if there are more. It waits some seconds for those that are about to end. Tests that run at the
// same time must not use RDMA.
//
// [cm.DefaultTransport] keeps devices open for a moment, so CheckLeaks calls its CloseIdle.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := count(t)
	t.Cleanup(func() {
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			now := count(t)
			maps.DeleteFunc(now, func(what string, n int) bool { return n <= before[what] })
			if len(now) == 0 {
				return
			}
			if time.Now().Before(end) {
				continue
			}
			for _, what := range slices.Sorted(maps.Keys(now)) {
				t.Errorf("%s: %d before the test, %d after it", what, before[what], now[what])
			}
			return
		}
	})
}

// count returns the numbers of objects of this process, by kind and device.
func count(t testing.TB) map[string]int {
	t.Helper()
	cm.DefaultTransport().CloseIdle()
	devs, err := rdmadev.Devices()
	check(t, err)
	counts := map[string]int{"IDs of cm.DefaultTransport": cm.DefaultTransport().Stats().IDs}
	for _, d := range devs {
		add(t, counts, "QPs of "+d.Name, d.QPs, func(r rdmadev.QP) rdmadev.Owner { return r.Owner })
		add(t, counts, "CQs of "+d.Name, d.CQs, func(r rdmadev.CQ) rdmadev.Owner { return r.Owner })
		add(t, counts, "MRs of "+d.Name, d.MRs, func(r rdmadev.MR) rdmadev.Owner { return r.Owner })
		add(t, counts, "PDs of "+d.Name, d.PDs, func(r rdmadev.PD) rdmadev.Owner { return r.Owner })
		add(t, counts, "SRQs of "+d.Name, d.SRQs, func(r rdmadev.SRQ) rdmadev.Owner { return r.Owner })
		add(t, counts, "CM IDs of "+d.Name, d.CMIDs, func(r rdmadev.CMID) rdmadev.Owner { return r.Owner })
		add(t, counts, "contexts of "+d.Name, d.Contexts, func(r rdmadev.Context) rdmadev.Owner { return r.Owner })
	}
	return counts
}

func add[T any](t testing.TB, counts map[string]int, what string, list func() ([]T, error), owner func(T) rdmadev.Owner) {
	t.Helper()
	all, err := list()
	check(t, err)
	for _, r := range all {
		// The kernel knows the thread that made an object, whose process is unknown when it has
		// ended.
		if o := owner(r); o.PID == os.Getpid() || o.PID == 0 && o.Kernel == "" {
			counts[what]++
		}
	}
}

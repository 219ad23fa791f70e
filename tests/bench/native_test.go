package bench

import (
	"flag"
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var native = flag.Bool("native", false, "measure user space alone, on User-mode Linux: make bench-native")

// TestNative measures the cost of posting and polling in user space, and compares it with
// libibverbs and with a cgo wrapper of libibverbs. All sides leave out the doorbell, a
// system call: for one that works in the kernel (siw's) Go must also notify its scheduler,
// which takes some 20 ns more. Go without locks is measured as well, and compared with
// libibverbs with locks, as that has no other mode on these devices.
func TestNative(t *testing.T) {
	if !*native {
		t.Skip("-native is not set")
	}
	sides := []side{
		{labtest.Built(t, "native-go"), "7490", nil},
		{labtest.Built(t, "native-go"), "7493", []string{"-single"}},
		{labtest.Built(t, "c/native"), "7491", nil},
	}
	if !*counted {
		sides = append(sides, side{labtest.Built(t, "native-cgo"), "7492", nil})
	}
	rounds := fmt.Sprint(max(scaled(60), 12))
	labtest.Each(t, func(t *testing.T, device string) {
		var measure []func() result
		for _, s := range sides {
			measure = append(measure, func() result { return s.once(t, labtest.AddrOf(device), s.port, rounds) })
		}
		all := pairs(*reps, *lasting, measure...)
		ours, single, c := all[0], all[1], all[2]
		for _, work := range []string{"sends", "receives"} {
			for i, rs := range all {
				if want, got := ours.figure(work).Min(), rs.figure(work); got.Min() != want || got.Max() != want {
					t.Errorf("%s: %s %v, others %v", sides[i].program, work, got, want)
				}
			}
		}
		allocs := ours.figure("allocs")
		if n := max(allocs.Max(), single.figure("allocs").Max()); n != 0 {
			t.Errorf("%v allocations in a round", n)
		}
		if !*counted {
			comparison{group: "allocations", device: device, name: "allocations", unit: "per round", better: lower, beside: "none", ours: allocs}.report(t)
		}
		for _, name := range []string{
			"post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "post_send_64", "poll_1", "poll_16", "poll_empty_1",
		} {
			line := comparison{
				group: "post and poll", device: device, name: name, unit: "ns", better: lower,
				beside: "libibverbs", ours: ours.figure(name), c: c.figure(name),
			}
			line.report(t)
			if !*counted {
				line.group, line.ours = "post and poll, single-threaded", single.figure(name)
				line.report(t)
				line.group, line.beside, line.ours, line.c = "post and poll, cgo", "cgo", ours.figure(name), all[3].figure(name)
				line.report(t)
			}
		}
	})
}

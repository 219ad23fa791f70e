package bench

import (
	"flag"
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var native = flag.Bool("native", false, "measure user space alone, on User-mode Linux: make bench-native")

// TestNative measures what posting and polling cost in user space, beside
// libibverbs and beside a wrapper of it through cgo. The doorbell is left out
// on all sides: the system call, with which Go also has to tell its scheduler
// of one that works in the kernel (siw's), some 20 ns more.
func TestNative(t *testing.T) {
	if !*native {
		t.Skip("-native is not set")
	}
	sides := []side{
		{labtest.Built(t, "native-go"), "7490", nil},
		{compile(t, "native.c", "-lrdmacm", "-libverbs"), "7491", nil},
		{labtest.Built(t, "native-cgo"), "7492", nil},
	}
	rounds := scaled(60)
	labtest.Each(t, func(t *testing.T, device string) {
		samples := make([]map[string]sample, len(sides))
		for i := range samples {
			samples[i] = map[string]sample{}
		}
		for rep := range max(*reps, 1) {
			for k := range sides {
				i := (rep + k) % len(sides) // each is first in turn
				r := sides[i].run(t, labtest.AddrOf(device), sides[i].port, fmt.Sprint(max(rounds, 12)))
				for name, v := range r {
					samples[i][name] = append(samples[i][name], v)
				}
			}
		}
		for _, work := range []string{"sends", "receives"} {
			for i := range sides {
				if want := samples[0][work].Min(); samples[i][work].Min() != want || samples[i][work].Max() != want {
					t.Errorf("%s: %s %v, others %v", sides[i].program, work, samples[i][work], want)
				}
			}
		}
		comparison{
			group: "allocations", device: device, name: "allocations", unit: "per round", better: lower,
			beside: "none", ours: samples[0]["allocs"],
		}.report(t)
		if n := samples[0]["allocs"].Max(); n != 0 {
			t.Errorf("%v allocations in a round", n)
		}
		for _, name := range []string{
			"post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "post_send_64", "poll_1", "poll_16", "poll_empty_1",
		} {
			line := comparison{
				group: "post and poll", device: device, name: name, unit: "ns", better: lower,
				beside: "libibverbs", ours: samples[0][name], c: samples[1][name],
			}
			line.report(t)
			line.group, line.beside, line.c = "post and poll, cgo", "cgo", samples[2][name]
			line.report(t)
		}
	})
}

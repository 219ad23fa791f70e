package bench

import (
	"flag"
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var native = flag.Bool("native", false, "measure user space alone, on User-mode Linux: make bench-native")

// The most that the library may take, of what the others do.
const (
	mostOfC   = 0.9
	mostOfCgo = 0.2
)

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
				if want := samples[0][work].min(); samples[i][work].min() != want || samples[i][work].max() != want {
					t.Errorf("%s: %s %v, others %v", sides[i].program, work, samples[i][work], want)
				}
			}
		}
		if n := samples[0]["allocs"].max(); n != 0 {
			t.Errorf("%v allocations in a round", n)
		}
		for _, name := range []string{
			"post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "post_send_64", "poll_1", "poll_16", "poll_empty_1",
		} {
			ours, c, cgo := samples[0][name], samples[1][name], samples[2][name]
			t.Logf("%s %-13s ns: Go %-22v C %-22v cgo %-22v  %s  %s", device, name, ours, c, cgo,
				share("C", ours, c, mostOfC), share("cgo", ours, cgo, mostOfCgo))
		}
	})
}

// share says what part of the others' median ours is, and whether that is more
// than it may be.
func share(of string, ours, theirs sample, most float64) string {
	part := ours.median() / theirs.median()
	verdict := "met"
	switch {
	case !ours.steady() || !theirs.steady():
		verdict = "too noisy to tell"
	case part > most:
		verdict = "missed"
	}
	return fmt.Sprintf("%.2f of %s (at most %.1f: %s)", part, of, most, verdict)
}

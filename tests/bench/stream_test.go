package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestStream sends bytes over rsock, beside rsockets and beside TCP on the
// same link.
func TestStream(t *testing.T) {
	program := compile(t, "stream.c", "-lrdmacm", "-lpthread")
	ours := side{labtest.Built(t, "stream"), "7482", nil}
	rsockets := side{program, "7483", nil}
	tcp := side{program, "7484", []string{"-t"}}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range []side{ours, rsockets, tcp} {
			s.serve(t, addr)
		}
		for _, work := range []struct {
			kind    string
			size, n int
		}{
			// Enough of each that what a program does the first time does not count.
			{"echo", 8, 2000}, {"echo", 4096, 1000}, {"echo", 65536, 100},
			{"send", 64, 10000}, {"send", 4096, 4000}, {"send", 65536, 400}, {"send", 1 << 20, 30},
		} {
			work.n = scaled(work.n)
			line := comparison{group: "rsock", device: device, name: fmt.Sprintf("%s of %d bytes", work.kind, work.size), unit: "µs", better: lower}
			figure := func(r result) float64 { return r["median"] }
			if work.kind == "send" {
				line.unit, line.better = "MB/s", higher
				figure = func(r result) float64 { return r["bytes"] / r["microseconds"] }
			}
			beside := line
			beside.group, beside.beside = "rsock, TCP", "TCP"
			sides := []struct {
				side
				*sample
			}{{ours, &line.ours}, {rsockets, &line.c}, {tcp, &beside.c}}
			for range max(*reps, 1) {
				for _, s := range sides {
					r := s.run(t, addr, s.port, work.kind, fmt.Sprint(work.size), fmt.Sprint(work.n))
					if want := float64(work.size * work.n); r["bytes"] != want {
						t.Fatalf("%s sent %v bytes, not %v", s.program, r["bytes"], want)
					}
					*s.sample = append(*s.sample, figure(r))
				}
				slices.Reverse(sides) // what is first may have it easier
			}
			beside.ours = line.ours
			line.report(t)
			beside.report(t)
		}
	})
}

package bench

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestConnect makes connections one after the other and many at a time, and
// holds many open.
func TestConnect(t *testing.T) {
	ours := side{labtest.Built(t, "connect"), "7480", nil}
	c := side{compile(t, "connect.c", "-lrdmacm", "-libverbs"), "7481", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range []side{ours, c} {
			s.serve(t, addr)
		}
		many := 400
		if device == labtest.SIW {
			many = 24 // with more, C's library takes a queue's offset for none: SIW_INVAL_UOBJ_KEY
		}
		for _, work := range []struct {
			name      string
			stay      bool
			n, p      int
			figure    func(result) float64
			unit      string
			direction better
		}{
			{"set-up, one at a time", false, 50, 1, func(r result) float64 { return r["median"] }, "µs", lower},
			{"set-ups, one at a time", false, 50, 1, result.rate, "/s", higher},
			{"set-ups, 16 at a time", false, 100, 16, result.rate, "/s", higher},
			{"memory of an idle connection", true, many, 16, func(r result) float64 { return r["kilobytes"] / r["connections"] }, "KiB", lower},
		} {
			work.n = scaled(work.n)
			line := comparison{name: device + ": " + work.name, unit: work.unit, better: work.direction}
			for range max(*reps, 1) {
				for _, s := range []struct {
					side
					*sample
				}{{ours, &line.ours}, {c, &line.c}} {
					args := []string{addr, s.port, fmt.Sprint(work.n), fmt.Sprint(work.p)}
					if work.stay {
						args = append([]string{"-i"}, args...)
					}
					r := s.run(t, args...)
					if r["connections"] != float64(work.n) {
						t.Fatalf("%s made %v connections of %d", s.program, r["connections"], work.n)
					}
					*s.sample = append(*s.sample, work.figure(r))
				}
			}
			line.report(t)
		}
	})
}

// rate is how many connections were made in a second.
func (r result) rate() float64 { return r["connections"] / r["microseconds"] * 1e6 }

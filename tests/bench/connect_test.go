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
		many := 200
		if device == labtest.SIW {
			many = 24 // with more, C's library takes a queue's offset for none: SIW_INVAL_UOBJ_KEY
		}
		type figure struct {
			group  string
			name   string
			of     func(result) float64
			unit   string
			better better
		}
		latency := figure{"set-up", "set-up, one at a time", func(r result) float64 { return r["median"] }, "µs", lower}
		memory := figure{"memory per connection", "an idle connection", func(r result) float64 { return r["kilobytes"] / r["connections"] }, "KiB", lower}
		for _, work := range []struct {
			stay    bool
			n, p    int
			figures []figure
		}{
			{false, 200, 1, []figure{latency, {"set-up", "set-ups, one at a time", result.rate, "/s", higher}}},
			{false, 400, 16, []figure{{"set-up", "set-ups, 16 at a time", result.rate, "/s", higher}}},
			{true, many, 16, []figure{memory}},
		} {
			work.n = scaled(work.n)
			args := []string{"", "", fmt.Sprint(work.n), fmt.Sprint(work.p)}
			if work.stay {
				args = append([]string{"-i"}, args...)
			}
			sides := []struct {
				side
				results []result
			}{{ours, nil}, {c, nil}}
			for range max(*reps, 1) {
				for i := range sides {
					s := &sides[i]
					copy(args[len(args)-4:], []string{addr, s.port})
					r := s.run(t, args...)
					if r["connections"] != float64(work.n) {
						t.Fatalf("%s made %v connections of %d", s.program, r["connections"], work.n)
					}
					s.results = append(s.results, r)
				}
			}
			for _, f := range work.figures {
				line := comparison{group: f.group, device: device, name: f.name, unit: f.unit, better: f.better}
				for i := range max(*reps, 1) {
					line.ours = append(line.ours, f.of(sides[0].results[i]))
					line.c = append(line.c, f.of(sides[1].results[i]))
				}
				line.report(t)
			}
		}
	})
}

// rate is how many connections were made in a second.
func (r result) rate() float64 { return r["connections"] / r["microseconds"] * 1e6 }

package bench

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestConnect makes connections one after the other and many at a time: event by
// event, as C's program does, and with Dial and Listen.
func TestConnect(t *testing.T) {
	loop := side{labtest.Built(t, "connect"), "7479", []string{"-loop"}}
	dial := side{loop.program, "7480", nil}
	c := side{compile(t, "connect.c", "-lrdmacm", "-libverbs"), "7481", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range []side{loop, dial, c} {
			s.serve(t, addr)
		}
		for _, way := range []struct {
			group string
			ours  side
		}{{"set-up, event by event", loop}, {"set-up", dial}} {
			compareConnects(t, comparison{group: way.group, device: device}, way.ours, c)
		}
	})
}

func compareConnects(t *testing.T, line comparison, ours, c side) {
	connect := func(n, p, rest int) (o, b figures) {
		n = scaled(n)
		return turns(ours, c, func(s side) result {
			r := s.run(t, labtest.AddrOf(line.device), s.port, fmt.Sprint(n), fmt.Sprint(p), fmt.Sprint(rest))
			if r["connections"] != float64(n) {
				t.Fatalf("%s made %v connections of %d", s.program, r["connections"], n)
			}
			r["nanoseconds"] = r["microseconds"] * 1e3
			return r
		})
	}
	// How long one takes shows when nothing of the one before is still to do.
	o, b := connect(100, 1, 10_000)
	line.name, line.unit, line.better = "set-up, by itself", "µs", lower
	line.ours, line.c = o["median"], b["median"]
	line.report(t)
	for _, work := range []struct {
		n, p int
		name string
	}{{200, 1, "one at a time"}, {300, 16, "16 at a time"}} {
		o, b := connect(work.n, work.p, 0)
		line.name, line.unit, line.better = "set-ups, "+work.name, "/s", higher
		line.ours, line.c = o.per("connections"), b.per("connections")
		line.report(t)
	}
}

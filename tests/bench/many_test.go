package bench

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestMany echoes messages on several connections of one process to another,
// each with one under way, and asks what memory the connections take.
func TestMany(t *testing.T) {
	ours := side{labtest.Built(t, "many"), "7495", nil}
	c := side{compile(t, "many.c", "-lrdmacm", "-libverbs"), "7496", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, work := range []struct{ conns, n int }{{1, 1000}, {16, 3000}, {256, 5000}} {
			conns, n := work.conns, work.n
			if *reps == 0 {
				conns = min(conns, 32)
				n = 4 * conns
			}
			const size = 64
			o, b := turns(ours, c, func(s side) result {
				defer s.start(t, addr)() // a server that has nothing left over from earlier connections
				r := s.run(t, addr, s.port, fmt.Sprint(conns), fmt.Sprint(n))
				s.counted(t, r, n, n*size, n, n*size)
				return r
			})
			line := comparison{group: "connections", device: device, unit: "/s", better: higher}
			line.name = fmt.Sprintf("echo of %d bytes, %s", size, count(conns, "connection"))
			line.ours, line.c = o.per("messages"), b.per("messages")
			line.report(t)
			if conns <= 16 {
				continue // what comes by the page and the heap's span hides the rest
			}
			for _, end := range []struct{ kilobytes, name string }{{"kilobytes", "client"}, {"peer_kilobytes", "server"}} {
				line := comparison{group: "memory per connection", device: device, unit: "KiB", better: lower}
				line.name = fmt.Sprintf("%s, of %d connections", end.name, conns)
				line.ours, line.c = times(o[end.kilobytes], 1/float64(conns-1)), times(b[end.kilobytes], 1/float64(conns-1))
				line.report(t)
			}
		}
	})
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

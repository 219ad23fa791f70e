package bench

import (
	"fmt"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestMany echoes messages on several connections between two processes, each
// with one message in flight, and measures the memory of the connections.
func TestMany(t *testing.T) {
	ours := side{labtest.Built(t, "many"), "7495", nil}
	c := side{labtest.Built(t, "c/many"), "7496", nil}
	disableTimeWait(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, work := range []struct{ conns, n, warm, starts int }{
			{1, 250, 300, 6}, {16, 1600, 2400, 6}, {256, 2560, 3072, 3}, {4096, 4096, 4096, 1},
		} {
			t.Run(count(work.conns, "connection"), func(t *testing.T) {
				const size = 64
				conns, n, warm := work.conns, max(scaled(work.n), work.conns), work.warm
				if *reps == 0 {
					conns = min(conns, 32)
					n, warm = 4*conns, conns
				}
				open := func(s side) opener {
					client := s.opens(t, func(r result) { s.counted(t, r, n, n*size, warm+n, (warm+n)*size) },
						addr, s.port, fmt.Sprint(conns), fmt.Sprint(n), fmt.Sprint(warm))
					return func() (func() result, func()) {
						stop := sync.OnceFunc(s.start(t, addr)) // a new server, without memory of earlier connections
						t.Cleanup(stop)
						measure, end := client()
						measure() // the other side connects when this one has
						return measure, func() { end(); stop() }
					}
				}
				rs := turnsOf(work.starts, open(ours), open(c))
				line := comparison{group: "connections", device: device, unit: "/s", better: higher}
				line.name = fmt.Sprintf("echo of %d bytes, %s", size, count(work.conns, "connection"))
				line.ours, line.c = rs[0].rate("messages"), rs[1].rate("messages")
				line.report(t)
				if work.conns < 4096 {
					return
				}
				for _, end := range []struct{ kilobytes, name string }{{"kilobytes", "client"}, {"peer_kilobytes", "server"}} {
					line := comparison{group: "memory per connection", device: device, unit: "KiB", better: lower}
					line.name = fmt.Sprintf("%s, of %d connections", end.name, work.conns)
					line.ours = times(rs[0].figure(end.kilobytes), 1/float64(conns-1))
					line.c = times(rs[1].figure(end.kilobytes), 1/float64(conns-1))
					line.report(t)
				}
			})
		}
	})
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

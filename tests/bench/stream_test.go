package bench

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestStream sends bytes over rsock, and compares with rsockets and with TCP on the same link.
func TestStream(t *testing.T) {
	program := labtest.Built(t, "c/stream")
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
			{"echo", 8, 100}, {"echo", 4096, 50}, {"echo", 65536, 10},
			{"send", 64, 2000}, {"send", 4096, 500}, {"send", 65536, 80}, {"send", 1 << 20, 5},
		} {
			if *counted && device == labtest.SIW && work.kind == "send" {
				continue // C's program hangs (docs/benchmarks/notes.md)
			}
			name := fmt.Sprintf("%s of %d bytes", work.kind, work.size)
			t.Run(name, func(t *testing.T) {
				n := scaled(work.n)
				rs := turns(
					ours.streaming(t, addr, work.kind, work.size, n),
					rsockets.streaming(t, addr, work.kind, work.size, n),
					tcp.streaming(t, addr, work.kind, work.size, n))
				line := comparison{group: "rsock", device: device, name: name, unit: "µs", better: lower}
				figure := results.medians
				if work.kind == "send" {
					line.unit, line.better = "MB/s", higher
					figure = results.megabytes
				}
				line.ours, line.c = figure(rs[0]), figure(rs[1])
				line.report(t)
				line.group, line.beside, line.c = "rsock, TCP", "TCP", figure(rs[2])
				line.report(t)
			})
		}
	})
}

// streaming returns the opener of a client of stream, which does all its work in each round.
func (s side) streaming(t *testing.T, addr, kind string, size, n int) opener {
	return s.opens(t, func(r result) {
		if want := float64(size * n); r.first("bytes") != want {
			t.Fatalf("%s sent %v bytes, not %v", s.program, r["bytes"], want)
		}
	}, addr, s.port, kind, fmt.Sprint(size), fmt.Sprint(n))
}

// megabytes returns how many megabytes a second were transferred.
func (rs results) megabytes() sample { return times(rs.rate("bytes"), 1e-6) }

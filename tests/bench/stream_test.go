package bench

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// TestStream sends bytes over rsock, and compares with rsockets and with TCP on the same link.
func TestStream(t *testing.T) {
	need(t)
	program := labtest.Built(t, "c/stream")
	sides := []side{
		{labtest.Built(t, "stream"), "7482", nil},
		{program, "7483", nil},
		{program, "7484", []string{"-t"}},
	}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range sides {
			s.serve(t, addr)
		}
		for _, work := range []struct {
			name, kind string
			size, n    int
		}{{"echo of 8 bytes", "echo", 8, 100}, {"writes of 64 KiB", "send", 65536, 80}} {
			t.Run(work.name, func(t *testing.T) {
				n := scaled(work.n)
				var openers []opener
				for _, s := range sides {
					openers = append(openers, s.opens(t, "bytes", work.size*n, addr, s.port, work.kind, work.size, n))
				}
				rs := turns(openers...)
				for i, beside := range []string{"rsockets", "TCP"} {
					l := record.Line{Group: record.Streams, Device: device, Name: work.name, Beside: beside}
					if work.kind == "echo" {
						l.Unit, l.Ours, l.C = "µs", rs[0].quantile(0.5), rs[i+1].quantile(0.5)
					} else {
						l.Unit, l.Higher = "MB/s", true
						l.Ours, l.C = times(rs[0].rate("bytes"), 1e-6), times(rs[i+1].rate("bytes"), 1e-6)
					}
					report(t, l)
				}
			})
		}
	})
}

package bench

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// TestSoft compares two devices in user space, connected by a loopback interface, with rxe
// between two processes on one device.
func TestSoft(t *testing.T) {
	need(t)
	labtest.Shell(t, "ip netns add perf; ip -n perf link set lo up") // as port 4791 belongs to the kernel's rxe elsewhere
	t.Cleanup(func() { labtest.Shell(t, "ip netns delete perf") })
	program := labtest.Built(t, "transfer")
	on := func(addr string, options ...string) side {
		return side{"ip", "7501", append([]string{"netns", "exec", "perf", "env", "VERBS_SOFT=" + addr, program}, options...)}
	}
	const to = "127.0.0.2"
	rxe, addr := side{program, "7502", nil}, labtest.AddrOf(labtest.RXE)
	on(to).serve(t, to)
	rxe.serve(t, addr)
	for _, work := range []struct {
		name, mode, unit string
		size, n, warm    int
		options          []string
	}{
		{"SEND of 8 bytes there and back, events", "lat", "µs", 8, 300, 300, []string{"-e"}},
		{"SEND of 64 KiB", "rate", "MB/s", 65536, 100, 100, nil},
	} {
		t.Run(work.name, func(t *testing.T) {
			args := func(addr, port string) []any {
				return []any{addr, port, work.mode, "send", work.size, scaled(work.n), scaled(work.warm), 1}
			}
			rxe := side{rxe.program, rxe.port, work.options}
			rs := turnsOf(usualStarts, on("127.0.0.3", work.options...).opens(t, "", 0, args(to, "7501")...), rxe.opens(t, "", 0, args(addr, "7502")...))
			l := record.Line{Group: record.Soft, Name: work.name, Unit: work.unit, Beside: "rxe"}
			if work.mode == "lat" {
				l.Ours, l.C = rs[0].quantile(0.5), rs[1].quantile(0.5)
			} else {
				l.Higher = true
				l.Ours, l.C = times(rs[0].rate("measured"), 65536/1e6), times(rs[1].rate("measured"), 65536/1e6)
			}
			report(t, l)
		})
	}
}

package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// TestConnect makes connections one after the other and many at a time, with cm.Dialer and
// cm.Listener, and with cm.Channel.
func TestConnect(t *testing.T) {
	need(t)
	ours := side{labtest.Built(t, "connect"), "7480", nil}
	channel := side{ours.program, "7485", []string{"-c"}}
	c := side{labtest.Built(t, "c/connect"), "7481", nil}
	disableTimeWait(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range []side{ours, channel, c} {
			s.serve(t, addr)
		}
		for _, work := range []struct {
			name  string
			ours  side
			n, at int
		}{
			{"set-ups, one at a time", ours, 20, 1},
			{"set-ups, 16 at a time", ours, 32, 16},
			{"set-ups, one at a time, cm.Channel", channel, 20, 1},
			{"set-ups, 16 at a time, cm.Channel", channel, 32, 16},
		} {
			t.Run(work.name, func(t *testing.T) {
				n, ours := scaled(work.n), work.ours
				rs := turns(ours.opens(t, "connections", n, addr, ours.port, n, work.at), c.opens(t, "connections", n, addr, c.port, n, work.at))
				l := record.Line{
					Group: record.Connections, Device: device, Name: work.name, Unit: "/s", Higher: true, Beside: "C",
					Ours: rs[0].rate("connections"), C: rs[1].rate("connections"),
				}
				if ours.port == channel.port {
					t.Log(l) // docs/performance.md has these; docs/benchmarks.md has as many lines as it may have
				} else {
					report(t, l)
				}
			})
		}
	})
}

// disableTimeWait disables TIME_WAIT of TCP until the test ends. A siw connection is a TCP
// connection, whose port would be in TIME_WAIT for a minute: the more such ports there are,
// the more often the connection manager chooses one, and siw_connect fails.
func disableTimeWait(t *testing.T) {
	t.Helper()
	const file = "/proc/sys/net/ipv4/tcp_max_tw_buckets"
	before := labtest.Must(os.ReadFile(file))(t)
	set := func(b []byte) {
		if err := os.WriteFile(file, b, 0); err != nil {
			t.Error(err)
		}
	}
	set([]byte("0"))
	t.Cleanup(func() { set(before) })
}

// TestMany echoes messages on several connections between two processes, each
// with one message in flight, and measures the memory of the connections.
func TestMany(t *testing.T) {
	need(t)
	ours := side{labtest.Built(t, "conns"), "7495", nil}
	c := side{labtest.Built(t, "c/conns"), "7496", nil}
	disableTimeWait(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, work := range []struct{ conns, n, warm, starts int }{
			{16, 1600, 2400, usualStarts}, {256, 2560, 3072, 2}, {4096, 4096, 4096, 1},
		} {
			name := fmt.Sprintf("echo over %d connections", work.conns)
			t.Run(name, func(t *testing.T) {
				conns, n, warm := work.conns, work.n, work.warm
				if *reps == 0 {
					conns = min(conns, 32)
					n, warm = 4*conns, conns
				}
				open := func(s side) opener {
					client := s.opens(t, "messages", n, addr, s.port, conns, n, warm)
					return func() (func() result, func()) {
						stop := s.serve(t, addr) // a new server, without memory of earlier connections
						measure, end := client()
						return measure, func() { end(); stop() }
					}
				}
				rs := turnsOf(work.starts, open(ours), open(c))
				report(t, record.Line{
					Group: record.Connections, Device: device, Name: name, Unit: "/s", Higher: true, Beside: "C",
					Ours: rs[0].rate("messages"), C: rs[1].rate("messages"),
				})
				if work.conns == 4096 {
					report(t, record.Line{
						Group: record.Connections, Device: device, Name: "memory of one of 4096", Unit: "KiB", Beside: "C",
						Ours: times(rs[0].figure("kilobytes"), 1/float64(conns-1)), C: times(rs[1].figure("kilobytes"), 1/float64(conns-1)),
					})
				}
			})
		}
	})
}

package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestConnect makes connections one after the other and many at a time, event by event, as
// C's program does, and with Dial and Listen. Both are compared with C's program.
func TestConnect(t *testing.T) {
	loop := side{labtest.Built(t, "connect"), "7479", []string{"-loop"}}
	dial := side{loop.program, "7480", nil}
	c := side{labtest.Built(t, "c/connect"), "7481", nil}
	disableTimeWait(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for _, s := range []side{loop, dial, c} {
			s.serve(t, addr)
		}
		compare := func(name string, line comparison, figure func(results) sample, args ...string) {
			t.Run(name, func(t *testing.T) {
				rs := turns(loop.connecting(t, addr, args...), dial.connecting(t, addr, args...), c.connecting(t, addr, args...))
				line.device, line.name, line.c = device, name, figure(rs[2])
				for i, group := range []string{"set-up, event by event", "set-up"} {
					line.group, line.ours = group, figure(rs[i])
					line.report(t)
				}
			})
		}
		each := comparison{unit: "µs", better: lower}
		rate := comparison{unit: "/s", better: higher}
		compare("set-up, by itself", each, results.medians, "each", fmt.Sprint(scaled(10)))
		compare("set-ups, one at a time", rate, results.connections, "rate", fmt.Sprint(scaled(20)), "1")
		compare("set-ups, 16 at a time", rate, results.connections, "rate", fmt.Sprint(scaled(32)), "16")
	})
}

// TestFirstByte makes connections and exchanges one message on each, there and back.
func TestFirstByte(t *testing.T) {
	ours := side{labtest.Built(t, "connect"), "7507", nil}
	c := side{labtest.Built(t, "c/connect"), "7508", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		ours.serve(t, addr)
		c.serve(t, addr)
		n := fmt.Sprint(scaled(3))
		rs := turns(ours.connecting(t, addr, "first", n), c.connecting(t, addr, "first", n))
		comparison{
			group: "first byte", device: device, name: "connection set up and a byte there and back", unit: "µs", better: lower,
			ours: rs[0].medians(), c: rs[1].medians(),
		}.report(t)
	})
}

// connecting returns the opener of a client that makes all its connections in each round.
func (s side) connecting(t *testing.T, addr string, args ...string) opener {
	return s.opens(t, func(r result) {
		if n := args[1]; fmt.Sprint(r.first("connections")) != n {
			t.Fatalf("%s made %v connections of %s", s.program, r["connections"], n)
		}
	}, append([]string{addr, s.port}, args...)...)
}

// medians returns the median time of single operations of each pair, in µs.
func (rs results) medians() sample {
	return rs.each(func(r result) float64 { return r["took"].Median() / 1e3 })
}

func (rs results) connections() sample { return rs.rate("connections") }

// disableTimeWait disables TIME_WAIT of TCP until the test ends. A siw connection is a TCP
// connection, whose port would be in TIME_WAIT for a minute: the more such ports there are,
// the more often the connection manager chooses one, and siw_connect fails.
func disableTimeWait(t *testing.T) {
	t.Helper()
	labtest.Require(t)
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

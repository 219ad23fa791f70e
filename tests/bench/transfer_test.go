package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLatency transfers messages over one connection, one at a time.
func TestLatency(t *testing.T) {
	useProcessors(t, 2)
	transfer(t, latencies)
}

// TestRate transfers messages over one connection as fast as the queues accept them.
func TestRate(t *testing.T) { transfer(t, rates) }

func transfer(t *testing.T, measure func(t *testing.T, device string, ours, c side)) {
	ours := side{labtest.Built(t, "transfer"), "7493", nil}
	c := side{compile(t, "transfer.c", "-lrdmacm", "-libverbs"), "7494", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		ours.serve(t, addr)
		c.serve(t, addr)
		measure(t, device, ours, c)
	})
}

// useProcessors limits the kernel to n processors until the test ends. If it has more than the
// machine on which it runs, one may have to wait until that machine's next tick, which would be
// the tail of all latencies.
func useProcessors(t *testing.T, n int) {
	t.Helper()
	labtest.Require(t)
	for i := n; i < runtime.NumCPU(); i++ {
		file := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", i)
		set := func(online string) {
			if err := os.WriteFile(file, []byte(online), 0); err != nil {
				t.Error(err)
			}
		}
		set("0")
		t.Cleanup(func() { set("1") })
	}
}

// latencies measures SEND and WRITE there and back, and READ and fetch-and-add, in which the
// peer's program takes no part: polled, by events, and both while Go collects garbage.
func latencies(t *testing.T, device string, ours, c side) {
	for _, work := range []struct {
		op     string
		events bool // a WRITE causes none
		name   string
		n      int
	}{
		{"send", false, "SEND of 8 bytes, there and back", 200},
		{"write", false, "WRITE of 8 bytes, there and back", 200},
		{"read", false, "READ of 8 bytes", 400},
		{"add", false, "fetch-and-add", 400},
		{"send", true, "SEND of 8 bytes, there and back", 200},
		{"read", true, "READ of 8 bytes", 200},
		{"add", true, "fetch-and-add", 200},
	} {
		if work.op == "add" && device == labtest.SIW {
			continue // it has no atomics
		}
		for _, garbage := range []bool{false, true} {
			if garbage && work.op != "read" {
				continue
			}
			line := comparison{group: "latency", device: device, name: work.name}
			ours, c := ours, c
			if work.events {
				line.group = "latency, events"
				ours.options, c.options = []string{"-e"}, []string{"-e"}
			}
			if garbage {
				line.group += ", garbage collection"
				ours.options = append(slices.Clip(ours.options), fmt.Sprintf("-g%d", scaled(1024)))
			}
			t.Run(line.group+"/"+line.name, func(t *testing.T) {
				rs := ours.beside(t, c, device, "lat", work.op, 8, scaled(work.n), 1)
				line.latencies(t, rs[0], rs[1])
			})
		}
	}
}

// beside runs a work on both sides, in turns, and checks that each does all of it.
func (s side) beside(t *testing.T, c side, device, mode, op string, size, n, list int) []results {
	t.Helper()
	heard, heardBytes := n, n*size // by the server's program
	switch {
	case op == "read", op == "write" && mode == "rate": // it does not count
		heard, heardBytes = 0, 0
	case op == "add": // it only knows the sum
		heardBytes = 0
	}
	var sessions []*session
	measure := func(s side) func() result {
		session := s.open(t, labtest.AddrOf(device), s.port, mode, op, fmt.Sprint(size), fmt.Sprint(n), fmt.Sprint(list))
		sessions = append(sessions, session)
		return func() result {
			r := session.run(t)
			s.counted(t, r, n, n*size, heard, heardBytes)
			return r
		}
	}
	defer func() { // the servers serve one client at a time
		for _, s := range sessions {
			s.close()
		}
	}()
	return turns(measure(s), measure(c))
}

// rates measures small messages, posted one and 32 at a time, and large ones.
func rates(t *testing.T, device string, ours, c side) {
	for _, op := range []struct{ arg, name string }{{"send", "SEND"}, {"write", "WRITE"}} {
		for _, size := range []int{8, 64} {
			name := fmt.Sprintf("%s of %d bytes", op.name, size)
			t.Run(name, func(t *testing.T) {
				line := comparison{group: "message rate", device: device, name: name, unit: "/s", better: higher}
				rs := ours.beside(t, c, device, "rate", op.arg, size, scaled(2000), 1)
				single := rs[1].rate("messages")
				line.ours, line.c = rs[0].rate("messages"), single
				line.report(t)

				rs = ours.beside(t, c, device, "rate", op.arg, size, scaled(2000), 32)
				line.name += ", 32 at a time"
				line.ours, line.c = rs[0].rate("messages"), rs[1].rate("messages")
				line.report(t)

				line.group = "message rate, batched"
				line.c = single
				line.report(t)
			})
		}
		for _, work := range []struct{ size, n int }{{4 << 10, 1000}, {64 << 10, 150}, {1 << 20, 10}} {
			name := fmt.Sprintf("%s of %d KiB", op.name, work.size>>10)
			t.Run(name, func(t *testing.T) {
				rs := ours.beside(t, c, device, "rate", op.arg, work.size, scaled(work.n), 1)
				line := comparison{group: "bandwidth", device: device, name: name, unit: "MB/s", better: higher}
				line.ours, line.c = times(rs[0].rate("bytes"), 1e-6), times(rs[1].rate("bytes"), 1e-6)
				line.report(t)
			})
		}
	}
}

// counted checks that a program has done all its work, as far as both of its ends know.
func (s side) counted(t *testing.T, r result, messages, bytes, peerMessages, peerBytes int) {
	t.Helper()
	for name, want := range map[string]int{
		"messages": messages, "bytes": bytes, "peer_messages": peerMessages, "peer_bytes": peerBytes,
	} {
		if r.first(name) != float64(want) {
			t.Fatalf("%s: %s are %v, not %d", s.program, name, r[name], want)
		}
	}
}

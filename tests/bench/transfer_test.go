package bench

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestTransfer moves messages over one connection: one at a time, and as fast as
// the queues take them.
func TestTransfer(t *testing.T) {
	ours := side{labtest.Built(t, "transfer"), "7493", nil}
	c := side{compile(t, "transfer.c", "-lrdmacm", "-libverbs"), "7494", nil}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		ours.serve(t, addr)
		c.serve(t, addr)
		latencies(t, device, ours, c)
		rates(t, device, ours, c)
	})
}

// latencies are of SEND and WRITE there and back, and of READ and
// fetch-and-add, which the peer's program has no part in.
func latencies(t *testing.T, device string, ours, c side) {
	addr := labtest.AddrOf(device)
	for _, work := range []struct {
		op     string
		events bool // whom a WRITE reaches gets none
		name   string
		n      int
	}{
		{"send", false, "SEND of 8 bytes, there and back", 1500},
		{"write", false, "WRITE of 8 bytes, there and back", 1500},
		{"read", false, "READ of 8 bytes", 3000},
		{"add", false, "fetch-and-add", 3000},
		{"send", true, "SEND of 8 bytes, there and back", 1000},
		{"read", true, "READ of 8 bytes", 2000},
		{"add", true, "fetch-and-add", 2000},
	} {
		if work.op == "add" && device == labtest.SIW {
			continue // it has no atomics
		}
		const size = 8
		n := scaled(work.n)
		heard, heardBytes := n, n*size // by the server's program
		switch work.op {
		case "read":
			heard, heardBytes = 0, 0
		case "add":
			heardBytes = 0 // it only has the sum
		}
		line := comparison{group: "latency", device: device, name: work.name, unit: "µs", better: lower}
		ours, c := ours, c
		if work.events {
			line.group = "latency, events"
			ours.options, c.options = []string{"-e"}, []string{"-e"}
		}
		o, b := turns(ours, c, func(s side) result {
			r := s.run(t, addr, s.port, "lat", work.op, fmt.Sprint(size), fmt.Sprint(n))
			s.counted(t, r, n, n*size, heard, heardBytes)
			return r
		})
		line.ours, line.c = times(o["median"], 1e-3), times(b["median"], 1e-3)
		line.report(t)
		t.Logf("%s: its 99th percentile: Go %v C %v µs", device, times(o["p99"], 1e-3), times(b["p99"], 1e-3))
	}
}

// rates are of small messages, posted one and 32 at a time, and of large ones.
func rates(t *testing.T, device string, ours, c side) {
	addr := labtest.AddrOf(device)
	for _, op := range []struct{ arg, name string }{{"send", "SEND"}, {"write", "WRITE"}} {
		measure := func(size, n, list int) (of, beside figures) {
			n = scaled(n)
			heard := n
			if op.arg == "write" {
				heard = 0 // nobody looks
			}
			return turns(ours, c, func(s side) result {
				r := s.run(t, addr, s.port, "rate", op.arg, fmt.Sprint(size), fmt.Sprint(n), fmt.Sprint(list))
				s.counted(t, r, n, n*size, heard, heard*size)
				return r
			})
		}
		for _, size := range []int{8, 64} {
			line := comparison{group: "message rate", device: device, unit: "/s", better: higher}
			o, single := measure(size, 6000, 1)
			line.name = fmt.Sprintf("%s of %d bytes", op.name, size)
			line.ours, line.c = o.per("messages"), single.per("messages")
			line.report(t)

			o, b := measure(size, 6000, 32)
			line.name += ", 32 at a time"
			line.ours, line.c = o.per("messages"), b.per("messages")
			line.report(t)

			line.group = "message rate, batched"
			line.c = single.per("messages")
			line.report(t)
		}
		for _, work := range []struct{ size, n int }{{4 << 10, 3000}, {64 << 10, 300}, {1 << 20, 20}} {
			o, b := measure(work.size, work.n, 1)
			line := comparison{group: "bandwidth", device: device, name: fmt.Sprintf("%s of %d KiB", op.name, work.size>>10), unit: "MB/s", better: higher}
			line.ours, line.c = times(o.per("bytes"), 1e-6), times(b.per("bytes"), 1e-6)
			line.report(t)
		}
	}
}

// counted sees to it that a program has done what it was told, as far as both
// of its sides can tell.
func (s side) counted(t *testing.T, r result, messages, bytes, peerMessages, peerBytes int) {
	t.Helper()
	for name, want := range map[string]int{
		"messages": messages, "bytes": bytes, "peer_messages": peerMessages, "peer_bytes": peerBytes,
	} {
		if r[name] != float64(want) {
			t.Fatalf("%s: %s are %v, not %d", s.program, name, r[name], want)
		}
	}
}

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// processors is how many processors tests of latencies use: one for each program that polls,
// and no more than the machine has.
const processors = 2

// TestLatency transfers messages over one connection, one at a time.
func TestLatency(t *testing.T) {
	useProcessors(t, processors)
	transfer(t, latencies)
}

// TestRate transfers messages over one connection as fast as the queues accept them.
func TestRate(t *testing.T) { transfer(t, rates) }

func transfer(t *testing.T, measure func(t *testing.T, device string, ours, c side)) {
	ours := side{labtest.Built(t, "transfer"), "7493", nil}
	c := side{labtest.Built(t, "c/transfer"), "7494", nil}
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

// disableIdle occupies n processors when nothing else does until the test ends, as the kernel's
// parameter idle=poll would. Where the kernel's threads work while a program polls, the time
// to wake a processor would be most of each latency, and most of the difference between turns.
func disableIdle(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		cmd := exec.Command("chrt", "--idle", "0", "taskset", "--cpu-list", fmt.Sprint(i), "sh", "-c", "while :; do :; done")
		labtest.Check(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
}

// latencies measures SEND and WRITE there and back, and READ and fetch-and-add, in which the
// peer's program takes no part: polled, by events, both while Go collects garbage, and with
// PollWait beside C's events.
func latencies(t *testing.T, device string, ours, c side) {
	for _, work := range []struct {
		op       string
		wait     string // the option of the Go program; empty if it polls. A WRITE causes no event
		name     string
		rxe, siw int // messages before the first that is measured: Go's monitor thread needs 8 ms
		n        int
	}{
		{"send", "", "SEND of 8 bytes, there and back", 1000, 3000, 600},
		{"write", "", "WRITE of 8 bytes, there and back", 1000, 3000, 600},
		{"read", "", "READ of 8 bytes", 3500, 2400, 1200},
		{"add", "", "fetch-and-add", 3500, 0, 800},
		{"send", "-e", "SEND of 8 bytes, there and back", 600, 800, 300},
		{"read", "-e", "READ of 8 bytes", 1800, 1200, 600},
		{"add", "-e", "fetch-and-add", 1800, 0, 600},
		{"send", "-w", "SEND of 8 bytes, there and back", 600, 1200, 300},
		{"read", "-w", "READ of 8 bytes", 1800, 1800, 600},
		{"add", "-w", "fetch-and-add", 1800, 0, 600},
	} {
		if work.op == "add" && device == labtest.SIW {
			continue // it has no atomics
		}
		for _, garbage := range []bool{false, true} {
			if garbage && (work.op != "read" || work.wait == "-w") {
				continue
			}
			line := comparison{group: "latency", device: device, name: work.name}
			ours, c, starts, warm := ours, c, usualStarts, work.rxe
			if device == labtest.SIW {
				warm = work.siw
			}
			switch work.wait {
			case "-e":
				line.group = "latency, events"
			case "-w":
				line.group = "latency, PollWait"
			}
			if work.wait != "" {
				ours.options, c.options = []string{work.wait}, []string{"-e"}
			}
			if garbage {
				line.group += ", garbage collection"
				starts, warm = 2, work.n // to fill the heap takes longer than to measure
				ours.options = append(slices.Clip(ours.options), fmt.Sprintf("-g%d", scaled(1024)))
			}
			t.Run(line.group+"/"+line.name, func(t *testing.T) {
				if work.wait == "" {
					disableIdle(t, processors)
				}
				rs := ours.runInTurns(t, c, starts, device, "lat", work.op, 8, scaled(work.n), scaled(warm), 1)
				line.latencies(t, rs[0], rs[1])
			})
		}
	}
}

// runInTurns runs a work on both sides, in turns, and checks that each does all of it.
func (s side) runInTurns(t *testing.T, c side, starts int, device, mode, op string, size, n, warm, list int) []results {
	t.Helper()
	all := warm + n
	heard, heardBytes := all, all*size // by the server's program
	switch {
	case op == "read", op == "write" && mode == "rate": // it does not count
		heard, heardBytes = 0, 0
	case op == "add": // it only knows the sum
		heardBytes = 0
	}
	open := func(s side) opener {
		return s.opens(t, func(r result) { s.counted(t, r, all, all*size, heard, heardBytes) },
			labtest.AddrOf(device), s.port, mode, op, fmt.Sprint(size), fmt.Sprint(n), fmt.Sprint(warm), fmt.Sprint(list))
	}
	return turnsOf(starts, open(s), open(c))
}

// rates measures small messages, posted one and 32 at a time, and large ones.
func rates(t *testing.T, device string, ours, c side) {
	for _, op := range []struct{ arg, name string }{{"send", "SEND"}, {"write", "WRITE"}} {
		for _, size := range []int{8, 64} {
			name := fmt.Sprintf("%s of %d bytes", op.name, size)
			t.Run(name, func(t *testing.T) {
				line := comparison{group: "message rate", device: device, name: name, unit: "/s", better: higher}
				rs := ours.runInTurns(t, c, usualStarts, device, "rate", op.arg, size, scaled(2000), scaled(4000), 1)
				single := rs[1].rate("measured")
				line.ours, line.c = rs[0].rate("measured"), single
				line.report(t)

				rs = ours.runInTurns(t, c, usualStarts, device, "rate", op.arg, size, scaled(2000), scaled(4000), 32)
				line.name += ", 32 at a time"
				line.ours, line.c = rs[0].rate("measured"), rs[1].rate("measured")
				line.report(t)

				line.group = "message rate, batched"
				line.c = single
				line.report(t)
			})
		}
		works := []struct{ size, n, warm int }{{4 << 10, 1000, 1200}, {64 << 10, 100, 100}, {1 << 20, 10, 5}}
		if device == labtest.SIW { // faster than rxe
			works = []struct{ size, n, warm int }{{4 << 10, 1000, 2000}, {64 << 10, 400, 400}, {1 << 20, 40, 20}}
		}
		for _, work := range works {
			name := fmt.Sprintf("%s of %d KiB", op.name, work.size>>10)
			t.Run(name, func(t *testing.T) {
				rs := ours.runInTurns(t, c, usualStarts, device, "rate", op.arg, work.size, scaled(work.n), scaled(work.warm), 1)
				line := comparison{group: "bandwidth", device: device, name: name, unit: "MB/s", better: higher}
				unit := float64(work.size) / 1e6
				line.ours, line.c = times(rs[0].rate("measured"), unit), times(rs[1].rate("measured"), unit)
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

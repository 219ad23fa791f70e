package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// processors is how many processors tests of latencies use: one for each program that polls,
// and no more than the machine has.
const processors = 2

// transfer has a function measure with the servers of both sides.
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

// TestLatency transfers messages over one connection, one at a time: SEND and WRITE there and
// back, and READ and fetch-and-add, in which the peer's program takes no part; polled, by
// events, and with PollWait beside C's events.
func TestLatency(t *testing.T) {
	need(t)
	useProcessors(t, processors)
	transfer(t, func(t *testing.T, device string, ours, c side) {
		for _, work := range []struct {
			op, wait string // the option of the Go program; empty if it polls
			name     string
			rxe, siw int // messages before the first that is measured: Go's monitor thread needs 8 ms
			n        int
		}{
			{"send", "", "SEND of 8 bytes there and back, polled", 1000, 3000, 600},
			{"write", "", "WRITE of 8 bytes there and back, polled", 1000, 3000, 600},
			{"read", "", "READ of 8 bytes, polled", 3500, 2400, 1200},
			{"add", "", "fetch-and-add, polled", 3500, 0, 800},
			{"send", "-e", "SEND of 8 bytes there and back, events", 600, 800, 300},
			{"read", "-e", "READ of 8 bytes, events", 1800, 1200, 600},
			{"send", "-w", "SEND of 8 bytes there and back, PollWait", 600, 1200, 300},
		} {
			warm, ours, c := work.rxe, ours, c
			if device == labtest.SIW {
				warm = work.siw
			}
			if warm == 0 {
				continue // siw has no atomics
			}
			if work.wait != "" {
				ours.options, c.options = []string{work.wait}, []string{"-e"}
			}
			t.Run(work.name, func(t *testing.T) {
				if work.wait == "" {
					disableIdle(t, processors)
				}
				rs := turnsOf(usualStarts, ours.moves(t, device, "lat", work.op, 8, work.n, warm, 1), c.moves(t, device, "lat", work.op, 8, work.n, warm, 1))
				for _, tail := range []struct {
					name string
					q    float64
				}{{"", 0.5}, {record.Tail, 0.99}} {
					report(t, record.Line{
						Group: record.Latency, Device: device, Name: work.name + tail.name, Unit: "µs", Beside: "C",
						Ours: rs[0].quantile(tail.q), C: rs[1].quantile(tail.q),
					})
				}
			})
		}
	})
}

// moves returns the opener of a client of transfer.
func (s side) moves(t *testing.T, device, mode, op string, size, n, warm, list int) opener {
	return s.opens(t, "", 0, labtest.AddrOf(device), s.port, mode, op, size, scaled(n), scaled(warm), list)
}

// TestRate transfers messages over one connection as fast as the queues accept them.
func TestRate(t *testing.T) {
	need(t)
	transfer(t, func(t *testing.T, device string, ours, c side) {
		for _, work := range []struct {
			op, name      string
			size, n, list int
		}{
			{"send", "SEND of 64 bytes", 64, 2000, 1},
			{"write", "WRITE of 64 bytes", 64, 2000, 1},
			{"send", "SEND of 64 bytes, 32 at a time", 64, 2000, 32},
			{"send", "SEND of 64 KiB", 65536, 100, 1},
			{"write", "WRITE of 64 KiB", 65536, 100, 1},
		} {
			n, warm, unit, scale := work.n, 2*work.n, "/s", 1.0
			if work.size > 64 {
				if device == labtest.SIW { // faster than rxe
					n *= 4
				}
				warm, unit, scale = n, "MB/s", float64(work.size)/1e6
			}
			t.Run(work.name, func(t *testing.T) {
				rs := turnsOf(usualStarts,
					ours.moves(t, device, "rate", work.op, work.size, n, warm, work.list),
					c.moves(t, device, "rate", work.op, work.size, n, warm, work.list))
				report(t, record.Line{
					Group: record.Rate, Device: device, Name: work.name, Unit: unit, Higher: true, Beside: "C",
					Ours: times(rs[0].rate("measured"), scale), C: times(rs[1].rate("measured"), scale),
				})
			})
		}
	})
}

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/tsc"
)

// TestPerftest compares verbs perf with perftest's programs, with the same options: a second
// comparison, with C programs that are not part of this project. There are fewer pairs than
// for other works: perftest's programs measure once, and libibverbs takes long to start.
func TestPerftest(t *testing.T) {
	verbs := labtest.Built(t, "verbs")
	hurry := labtest.Built(t, "c/hurry")
	start, ticks := time.Now(), tsc.Read()
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		servePerf(t, []string{verbs}, device)
		for _, work := range []struct {
			theirs string   // program
			ours   []string // command
			name   string
			size   int
			n      int
		}{
			{"ib_send_lat", []string{"send", "lat"}, "ib_send_lat, 8 bytes", 8, 6000},
			{"ib_write_lat", []string{"write", "lat"}, "ib_write_lat, 8 bytes", 8, 6000},
			{"ib_read_lat", []string{"read", "lat"}, "ib_read_lat, 8 bytes", 8, 6000},
			{"ib_atomic_lat", []string{"fetch-add", "lat"}, "ib_atomic_lat", 0, 6000},
			{"ib_send_bw", []string{"send", "bw"}, "ib_send_bw, 64 KiB", 65536, 200},
			{"ib_write_bw", []string{"write", "bw"}, "ib_write_bw, 64 KiB", 65536, 200},
			{"ib_read_bw", []string{"read", "bw"}, "ib_read_bw, 64 KiB", 65536, 200},
			{"ib_atomic_bw", []string{"fetch-add", "bw"}, "ib_atomic_bw", 0, 6000},
		} {
			atomic := work.size == 0
			if atomic && device == labtest.SIW {
				continue // it has none
			}
			t.Run(work.name, func(t *testing.T) {
				if strings.HasSuffix(work.theirs, "_lat") {
					useProcessors(t, processors)
					disableIdle(t, processors)
				}
				n := work.n
				if work.size > 8 && device == labtest.SIW {
					n *= 5 // so that data in TCP's buffers has little effect
				}
				n = max(scaled(n), 100) // at least the messages per completion of bandwidth tests
				args, theirs := []string{"-n", strconv.Itoa(n)}, []string{"-A", "FETCH_AND_ADD"}
				if !atomic {
					args, theirs = append(args, "-s", strconv.Itoa(work.size)), nil
				}
				line := comparison{group: "perftest", device: device, name: work.name, unit: "µs", better: lower, beside: "perftest"}
				if strings.HasSuffix(work.theirs, "_bw") {
					line.unit, line.better = "/s", higher
				}
				rs := pairs(min(*reps, 8), 0,
					func() result { return perf(t, []string{verbs}, addr, n, append(work.ours, args...)) },
					func() result {
						figure := perftest(t, work.theirs, hurry, device, addr, n, append(theirs, args...))
						microsecond := float64(tsc.Read()-ticks) / float64(time.Since(start).Microseconds())
						if line.better == lower {
							return result{"figure": {figure * fakeTicksPerMicrosecond / microsecond}}
						}
						return result{"figure": {figure * 1e6 * microsecond / fakeTicksPerMicrosecond}}
					})
				line.ours, line.c = rs[0].figure("figure"), rs[1].figure("figure")
				if work.size > 8 {
					line.unit = "MiB/s"
					line.ours, line.c = times(line.ours, float64(work.size)/(1<<20)), times(line.c, float64(work.size)/(1<<20))
				}
				line.report(t)
			})
		}
	})
}

// fakeTicksPerMicrosecond is the number of ticks of the time stamp counter per microsecond in c/hurry.c.
const fakeTicksPerMicrosecond = 4096

const perfPort = "7499"

// servePerf runs verbs perf's server until the test ends.
func servePerf(t *testing.T, verbs []string, device string) {
	t.Helper()
	cmd := exec.Command(verbs[0], slices.Concat(verbs[1:], []string{"perf", "server", "-d", device, "-p", perfPort})...)
	stderr := labtest.Must(cmd.StderrPipe())(t)
	labtest.Check(t, cmd.Start())
	r := bufio.NewReader(stderr)
	if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "listening") {
		cmd.Process.Kill()
		t.Fatalf("verbs perf server says %q: %v", line, err)
	}
	heard := make(chan error, 1)
	go func() {
		_, err := io.Copy(os.Stderr, r)
		heard <- err
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		err := <-heard // the end
		if err := errors.Join(err, cmd.Wait()); err != nil {
			t.Errorf("verbs perf server: %v", err)
		}
	})
}

// perf runs verbs perf's client: the figure is the median latency, or the number of messages
// a second.
func perf(t *testing.T, verbs []string, addr string, n int, args []string) result {
	t.Helper()
	cmd := exec.Command(verbs[0], slices.Concat(verbs[1:], []string{"perf"}, args, []string{addr, "-p", perfPort, "--json"})...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var said struct {
		Results []struct {
			Sent      int
			Latency   *struct{ P50 float64 } `json:"latency_us"`
			Bandwidth *struct {
				Messages float64 `json:"messages_per_second"`
			} `json:"bandwidth"`
		}
	}
	if err := json.Unmarshal(out, &said); err != nil || len(said.Results) != 1 || said.Results[0].Sent != n {
		t.Fatalf("%v: %v in\n%s", cmd.Args, err, out)
	}
	r := said.Results[0]
	if r.Bandwidth != nil {
		return result{"figure": {r.Bandwidth.Messages}}
	}
	return result{"figure": {r.Latency.P50}}
}

// runPerftest runs a server and a client, and returns the client's output.
func runPerftest(t *testing.T, program, hurry, addr string, args []string) (string, error) {
	t.Helper()
	limit := runTimeout
	if *reps > 0 {
		limit = time.Second // siw's first message may be lost, see settle in c/cm.h
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	env := append(os.Environ(), "LD_PRELOAD="+hurry)
	server := exec.CommandContext(ctx, program, args...)
	server.Stderr, server.Env = os.Stderr, env
	if err := server.Start(); err != nil {
		return "", err
	}
	labtest.WaitListening(t, perftestPort)
	client := exec.CommandContext(ctx, program, append(args, addr)...)
	client.Stderr, client.Env = os.Stderr, env
	out, err := client.Output()
	if err != nil {
		cancel()
	}
	if e := server.Wait(); e != nil {
		err = errors.Join(err, fmt.Errorf("server: %w", e))
	}
	return string(out), err
}

const perftestPort = "7500"

// perftest runs a program of perftest and returns the same figure from its table, by the
// clock of c/hurry.c.
func perftest(t *testing.T, program, hurry, device, addr string, n int, args []string) (figure float64) {
	t.Helper()
	args = append([]string{"-F", "-R", "-d", device, "-p", perftestPort}, args...)
	// They may fail by themselves: a server lets its client connect before it listens, in
	// create_rdma_cm_connection, and 4.5's client fails when it is refused. On a busy
	// machine get_cpu_mhz cannot fit a line to its points: the figure is 0 or inf.
	for range 5 {
		out, err := runPerftest(t, program, hurry, addr, args)
		if err == nil {
			figure, err = typical(out, n)
		}
		if err == nil && figure > 0 && !math.IsInf(figure, 1) {
			return figure
		}
		t.Logf("%s: %v\n%s", program, err, out)
	}
	t.Fatalf("%s fails", program)
	return 0
}

// typical returns t_typical of a latency test, or the millions of messages a second of a
// bandwidth test, for n messages.
func typical(out string, n int) (float64, error) {
	_, table, _ := strings.Cut(out, "#bytes")
	_, row, _ := strings.Cut(table, "\n")
	row, _, _ = strings.Cut(row, "\n")
	fields := strings.Fields(row)
	if len(fields) < 5 || fields[1] != fmt.Sprint(n) {
		return 0, errors.New("no results")
	}
	return strconv.ParseFloat(fields[4], 64)
}

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestPerftest sets verbs perf beside perftest's programs, with their options:
// a second witness, whose C we did not write.
func TestPerftest(t *testing.T) {
	verbs := labtest.Built(t, "verbs")
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		servePerf(t, verbs, device)
		for _, work := range []struct {
			theirs string   // program
			ours   []string // command
			name   string
			n      int
			args   []string // of both
		}{
			{"ib_send_lat", []string{"send", "lat"}, "ib_send_lat, 8 bytes", 1000, []string{"-s", "8"}},
			{"ib_write_lat", []string{"write", "lat"}, "ib_write_lat, 8 bytes", 1000, []string{"-s", "8"}},
			{"ib_read_lat", []string{"read", "lat"}, "ib_read_lat, 8 bytes", 1000, []string{"-s", "8"}},
			{"ib_atomic_lat", []string{"fetch-add", "lat"}, "ib_atomic_lat", 1000, nil},
			{"ib_send_bw", []string{"send", "bw"}, "ib_send_bw, 64 KiB", 300, []string{"-s", "65536"}},
		} {
			if work.theirs == "ib_atomic_lat" && device == labtest.SIW {
				continue // it has no atomics
			}
			n := max(scaled(work.n), 100) // at least what ib_send_bw has for a completion
			args := append([]string{"-n", strconv.Itoa(n)}, work.args...)
			line := comparison{group: "perftest", device: device, name: work.name, unit: "µs", better: lower, beside: "perftest"}
			if strings.HasSuffix(work.theirs, "_bw") {
				line.unit, line.better = "MiB/s", higher
			}
			ours, c := side{program: verbs}, side{program: work.theirs}
			o, b := turns(ours, c, func(s side) result {
				if s.program == verbs {
					return perf(t, verbs, addr, n, append(work.ours, args...))
				}
				theirArgs := args
				if work.theirs == "ib_atomic_lat" {
					theirArgs = append([]string{"-A", "FETCH_AND_ADD"}, args...)
				}
				return perftest(t, s.program, device, addr, n, theirArgs)
			})
			line.ours, line.c = o["figure"], b["figure"]
			line.report(t)
		}
	})
}

const perfPort = "7499"

// servePerf runs verbs perf's server until the test ends.
func servePerf(t *testing.T, verbs, device string) {
	t.Helper()
	cmd := exec.Command(verbs, "perf", "server", "-d", device, "-p", perfPort)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// perf runs verbs perf's client: the figure is the median of times, or the
// bandwidth.
func perf(t *testing.T, verbs, addr string, n int, args []string) result {
	t.Helper()
	cmd := exec.Command(verbs, append(append([]string{"perf"}, args...), addr, "-p", perfPort, "--json")...)
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
				Mebi float64 `json:"mib_per_second"`
			} `json:"bandwidth"`
		}
	}
	if err := json.Unmarshal(out, &said); err != nil || len(said.Results) != 1 || said.Results[0].Sent != n {
		t.Fatalf("%v: %v in\n%s", cmd.Args, err, out)
	}
	r := said.Results[0]
	if r.Bandwidth != nil {
		return result{"figure": r.Bandwidth.Mebi}
	}
	return result{"figure": r.Latency.P50}
}

// runPerftest runs a server and a client, and returns what the client says.
func runPerftest(t *testing.T, program, addr string, args []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	server := exec.CommandContext(ctx, program, args...)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return "", err
	}
	labtest.Listening(t, perftestPort)
	client := exec.CommandContext(ctx, program, append(args, addr)...)
	client.Stderr = os.Stderr
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

// perftest takes the same figure from the table of one of its programs. They may fail
// without us: a server has its client connect before it listens, in
// create_rdma_cm_connection, and 4.5's client does not survive being refused.
func perftest(t *testing.T, program, device, addr string, n int, args []string) result {
	t.Helper()
	args = append([]string{"-F", "-R", "-d", device, "-p", perftestPort}, args...)
	var out string
	var err error
	for range 5 {
		if out, err = runPerftest(t, program, addr, args); err == nil {
			break
		}
		t.Logf("%s: %v", program, err)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	_, table, _ := strings.Cut(out, "#bytes")
	_, row, _ := strings.Cut(table, "\n")
	row, _, _ = strings.Cut(row, "\n")
	fields := strings.Fields(row)
	column := 4 // of latencies: t_typical
	if strings.HasSuffix(program, "_bw") {
		column = 3 // BW average
	}
	if len(fields) <= column || fields[1] != fmt.Sprint(n) {
		t.Fatalf("%s says\n%s", program, out)
	}
	figure, err := strconv.ParseFloat(fields[column], 64)
	if err != nil {
		t.Fatalf("%s says\n%s", program, out)
	}
	return result{"figure": figure}
}

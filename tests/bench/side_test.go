package bench

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

var (
	reps    = flag.Int("reps", 0, "pairs of figures: zero only tests that it works")
	lasting = flag.Duration("lasting", 0, "how long each work is measured, in as many turns as that takes: at least one a pair")
)

// scaled returns n, or less if -reps is 0.
func scaled(n int) int {
	if *reps == 0 {
		return max(n/20, 2)
	}
	return n
}

// need skips a benchmark where there is no kernel to measure, and in a quick run of all tests.
func need(t *testing.T) {
	t.Helper()
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("a benchmark")
	}
}

// report logs a line, and appends it to the records in the folder BENCH_RECORDS, if set.
func report(t *testing.T, l record.Line) {
	t.Helper()
	t.Log(l)
	if dir := os.Getenv("BENCH_RECORDS"); dir != "" {
		if err := record.Append(dir, l); err != nil {
			t.Error(err)
		}
	}
}

// sample holds the figures of one side, one for each repetition.
type sample = record.Sample

// side is a program that measures, the port of its server, and the options before its other
// arguments.
type side struct {
	program, port string
	options       []string
}

// serve runs the program's server until the test ends, or stop is called.
func (s side) serve(t *testing.T, addr string) (stop func()) {
	t.Helper()
	server := s.open(t, "-s", addr, s.port)
	if line, err := server.out.ReadString('\n'); line != "ready\n" {
		server.cmd.Process.Kill()
		t.Fatalf("%s says %q: %v", s.program, line, err)
	}
	return server.close
}

// result holds the figures of one measurement that a program printed, by name.
type result map[string]sample

// first returns the only figure of a name.
func (r result) first(name string) float64 {
	if len(r[name]) == 0 {
		return math.NaN()
	}
	return r[name][0]
}

// session is a running program: a server, or a client that measures once for each run.
type session struct {
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
	close func()
}

// open starts the program, which ends at the latest when the test does.
func (s side) open(t *testing.T, args ...string) *session {
	t.Helper()
	cmd := exec.Command(s.program, append(slices.Clip(s.options), args...)...)
	cmd.Stderr = os.Stderr
	in := labtest.Must(cmd.StdinPipe())(t)
	out := labtest.Must(cmd.StdoutPipe())(t)
	labtest.Check(t, cmd.Start())
	end := sync.OnceFunc(func() {
		in.Close()
		limit := time.AfterFunc(runTimeout, func() { cmd.Process.Kill() })
		defer limit.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", cmd.Args, err)
		}
	})
	t.Cleanup(end)
	return &session{cmd, in, bufio.NewReader(out), end}
}

// runTimeout is how long a program may take for a short operation.
const runTimeout = 30 * time.Second

// run makes the client measure once.
func (s *session) run(t *testing.T) result {
	t.Helper()
	limit := time.AfterFunc(runTimeout, func() { s.cmd.Process.Kill() })
	defer limit.Stop()
	_, err := io.WriteString(s.in, "\n")
	r, rerr := readResult(s.out)
	if err := errors.Join(err, rerr); err != nil {
		t.Fatalf("%v: %v", s.cmd.Args, err)
	}
	return r
}

// once runs the program's client for one measurement.
func (s side) once(t *testing.T, args ...string) result {
	t.Helper()
	client := s.open(t, args...)
	defer client.close()
	return client.run(t)
}

// readResult reads lines of a name and its figures, up to an empty line.
func readResult(in *bufio.Reader) (result, error) {
	for r := (result{}); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		f := strings.Fields(line)
		if len(f) == 0 {
			return r, nil
		}
		for _, text := range f[1:] {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			r[f[0]] = append(r[f[0]], v)
		}
	}
}

// add adds the figures of another measurement by the same program.
func (r result) add(more result) {
	for name, figures := range more {
		switch name {
		case "took", "nanoseconds", "messages", "measured", "bytes", "connections":
			r[name] = append(r[name], figures...)
		default: // these describe more than the measurement
			r[name] = figures
		}
	}
}

// results holds the measurements of one side, pair by pair.
type results []result

// opener starts a side's program, which measures at each call of measure, until end is called.
type opener func() (measure func() result, end func())

// opens returns the opener of the program's client. With a count, the first figure of that name
// must be n.
func (s side) opens(t *testing.T, count string, n int, args ...any) opener {
	var texts []string
	for _, a := range args {
		texts = append(texts, fmt.Sprint(a))
	}
	return func() (func() result, func()) {
		session := s.open(t, texts...)
		return func() result {
			r := session.run(t)
			if count != "" && r.first(count) != float64(n) {
				t.Fatalf("%s: %s: %v, not %d", s.program, count, r.first(count), n)
			}
			return r
		}, session.close
	}
}

// usualStarts is how often most programs are started for a line.
const usualStarts = 4

// turns makes all sides measure in turns, and starts their programs as often as usual. After each
// start all measure once without a result.
func turns(sides ...opener) []results {
	for i, open := range sides {
		sides[i] = func() (func() result, func()) {
			measure, end := open()
			if *reps > 0 {
				measure()
			}
			return measure, end
		}
	}
	return turnsOf(usualStarts, sides...)
}

// turnsOf is like turns for programs whose measurements begin with work that is not measured.
// What differs from one start to the next, such as where memory lies, is the same in all pairs
// of a start.
func turnsOf(starts int, sides ...opener) []results {
	starts = max(min(starts, *reps), 1)
	all := make([]results, len(sides))
	for start := range starts {
		var measures []func() result
		var ends []func()
		for _, open := range sides {
			measure, end := open()
			measures, ends = append(measures, measure), append(ends, end)
		}
		n := *reps*(start+1)/starts - *reps*start/starts
		for i, rs := range inTurns(n, *lasting/time.Duration(starts), measures...) {
			all[i] = append(all[i], rs...)
		}
		for _, end := range ends { // the servers serve one client at a time
			end()
		}
	}
	return all
}

// inTurns makes all sides measure in short turns, whose order changes: n times, or once if -reps
// is 0, they share at least an n-th of the time. A disturbance of the machine for a turn or
// two has little effect that way.
func inTurns(n int, lasting time.Duration, sides ...func() result) []results {
	n = max(n, 1)
	all := make([]results, len(sides))
	for turn := 0; len(all[0]) < n; {
		for i := range all {
			all[i] = append(all[i], result{})
		}
		for start := time.Now(); ; {
			for k := range sides {
				i := (turn + k) % len(sides)
				all[i][len(all[i])-1].add(sides[i]())
			}
			if turn++; time.Since(start) >= lasting/time.Duration(n) {
				break
			}
		}
	}
	return all
}

// figure returns the only figure of a name in each pair.
func (rs results) figure(name string) sample {
	return rs.each(func(r result) float64 { return r.first(name) })
}

// each returns a sample with the figure of each pair.
func (rs results) each(figure func(result) float64) sample {
	var s sample
	for _, r := range rs {
		s = append(s, figure(r))
	}
	return s
}

// rate returns the count of a name per second in each pair: the geometric mean of the turns,
// in which a stalled turn counts no more than another.
func (rs results) rate(name string) sample {
	return rs.each(func(r result) float64 {
		logs := 0.0
		for i, n := range r[name] {
			logs += math.Log(n / r["nanoseconds"][i] * 1e9)
		}
		return math.Exp(logs / float64(len(r[name])))
	})
}

// quantile returns a quantile of the times of single operations of each pair, in µs.
func (rs results) quantile(q float64) sample {
	return rs.each(func(r result) float64 { return r["took"].Quantile(q) / 1e3 })
}

// times returns s multiplied by k.
func times(s sample, k float64) sample {
	s = slices.Clone(s)
	for i := range s {
		s[i] *= k
	}
	return s
}

package bench

import (
	"bufio"
	"bytes"
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
)

var (
	reps    = flag.Int("reps", 0, "pairs of figures: benchmarks take 30, zero only tests that it works")
	lasting = flag.Duration("lasting", 0, "how long each work is measured, in as many turns as that takes: at least one a pair")
)

// scaled returns n, or less if -reps is 0.
func scaled(n int) int {
	if *reps == 0 {
		return max(n/20, 2)
	}
	return n
}

// side is a program that measures, the port of its server, and the options before its other
// arguments.
type side struct {
	program, port string
	options       []string
}

func (s side) command(args ...string) *exec.Cmd {
	return exec.Command(s.program, append(slices.Clip(s.options), args...)...)
}

// serve runs the program's server until the test ends.
func (s side) serve(t *testing.T, addr string) {
	t.Helper()
	t.Cleanup(s.start(t, addr))
}

// start runs the program's server until it is stopped.
func (s side) start(t *testing.T, addr string) (stop func()) {
	t.Helper()
	cmd := s.command("-s", addr, s.port)
	cmd.Stderr = os.Stderr
	stdin := labtest.Must(cmd.StdinPipe())(t)
	stdout := labtest.Must(cmd.StdoutPipe())(t)
	labtest.Check(t, cmd.Start())
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		cmd.Process.Kill()
		t.Fatalf("%s says %q: %v", s.program, line, err)
	}
	return func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", s.program, err)
		}
	}
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

// once runs the program's client for one measurement.
func (s side) once(t *testing.T, args ...string) result {
	t.Helper()
	cmd := s.command(args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	limit := time.AfterFunc(runTimeout, func() { cmd.Process.Kill() })
	defer limit.Stop()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	r, err := readResult(bufio.NewReader(io.MultiReader(bytes.NewReader(out), strings.NewReader("\n"))))
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return r
}

// session is a client that measures once for each run, until it is closed.
type session struct {
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
	close func()
}

// open starts the program's client, which is closed at the latest when the test ends.
func (s side) open(t *testing.T, args ...string) *session {
	t.Helper()
	cmd := s.command(args...)
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
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		t.Fatalf("%v: %v", s.cmd.Args, err)
	}
	r, err := readResult(s.out)
	if err != nil {
		t.Fatalf("%v: %v", s.cmd.Args, err)
	}
	return r
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

// opens returns the opener of the program's client, whose results are checked.
func (s side) opens(t *testing.T, check func(result), args ...string) opener {
	return func() (func() result, func()) {
		session := s.open(t, args...)
		return func() result {
			r := session.run(t)
			check(r)
			return r
		}, session.close
	}
}

// usualStarts is how often most programs are started for a line.
const usualStarts = 6

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

// pairs makes all sides measure once without a result, so that work that is done only once,
// such as connecting, is over, and then in turns.
func pairs(n int, lasting time.Duration, sides ...func() result) []results {
	if *reps > 0 {
		for _, side := range sides {
			side()
		}
	}
	return inTurns(n, lasting, sides...)
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

// both makes both sides do the same work in turns.
func both(ours, c side, do func(side) result) (of, beside results) {
	rs := pairs(*reps, *lasting, func() result { return do(ours) }, func() result { return do(c) })
	return rs[0], rs[1]
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

// all returns the figures of all pairs.
func (rs results) all(name string) sample {
	var s sample
	for _, r := range rs {
		s = append(s, r[name]...)
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

// times returns s multiplied by k.
func times(s sample, k float64) sample {
	s = slices.Clone(s)
	for i := range s {
		s[i] *= k
	}
	return s
}

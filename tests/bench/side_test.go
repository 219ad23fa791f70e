package bench

import (
	"bufio"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var reps = flag.Int("reps", 0, "how often to measure: benchmarks want 9 or more, zero only sees whether it works")

// scaled is how much work there is.
func scaled(n int) int {
	if *reps == 0 {
		return max(n/20, 2)
	}
	return n
}

// side is a program that measures, the port its server has, and what it takes
// before its other arguments.
type side struct {
	program, port string
	options       []string
}

// compile builds one of the C programs.
func compile(t *testing.T, source string, libs ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".c"))
	args := append([]string{"-O2", "-Wall", "-Werror", "-o", bin, filepath.Join("c", source)}, libs...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%.2000s", err, out)
	}
	return bin
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
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// result is what a program printed.
type result map[string]float64

// run runs the program's client.
func (s side) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := s.command(args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	limit := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer limit.Stop()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", s.program, strings.Join(args, " "), err)
	}
	r := result{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if r[name], err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatalf("%s: %q: %v", s.program, line, err)
		}
	}
	return r
}

// figures are what one side measured, by name.
type figures map[string]sample

// turns has both sides do the same, each first in turn.
func turns(ours, c side, do func(side) result) (of, beside figures) {
	of, beside = figures{}, figures{}
	both := []struct {
		side
		figures
	}{{ours, of}, {c, beside}}
	for range max(*reps, 1) {
		for _, s := range both {
			for name, v := range do(s.side) {
				s.figures[name] = append(s.figures[name], v)
			}
		}
		slices.Reverse(both)
	}
	return of, beside
}

// per is a sample of so many a second: of what is counted by name, of which
// the program says how long it took.
func (f figures) per(name string) sample {
	s := make(sample, len(f[name]))
	for i, n := range f[name] {
		s[i] = n / f["nanoseconds"][i] * 1e9
	}
	return s
}

// times is a sample in other units.
func times(s sample, k float64) sample {
	s = slices.Clone(s)
	for i := range s {
		s[i] *= k
	}
	return s
}

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFlags checks that flags come before variables, may follow a command, and end at the program.
func TestFlags(t *testing.T) {
	t.Setenv("LAB_KERNEL", "6.1")
	t.Setenv("LAB_MEM", "1024")
	c, rest, err := parse([]string{"-mem", "512", "run", "--peer=6.12", "prog", "--kernel", "x"})
	if err != nil || !slices.Equal(rest, []string{"run", "prog", "--kernel", "x"}) {
		t.Fatal(rest, err)
	}
	if c.kernel != "6.1" || c.mem != 512 || c.peer != "6.12" || c.cpus != 2 || c.timeout != 20*time.Minute {
		t.Errorf("%+v", c)
	}
	if c, _, err := parse([]string{"--accel", dilated, "x"}); err != nil || c.cpus != 4 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--kernel 5.4 x":                 "--kernel 5.4: not one of 6.12, ",
		"--peer 5.4 x":                   "--peer 5.4: not one of 6.12, ",
		"--arch vax x":                   "--arch vax: not one of amd64, ",
		"--arch arm64 --accel dilated x": "--arch arm64: ",
		"--accel hvf x":                  "--accel hvf: not one of kvm, tcg, icount, dilated",
		"--factor 0.5 x":                 "--factor 0.5: not in 1..100",
		"--mem 1 x":                      "--mem 1: ",
		"--cpus -1 x":                    "--cpus -1: ",
		"--timeout soon x":               `invalid value "soon"`,
		"run --nonsense x":               "-nonsense",
		"--kernel":                       "needs an argument",
		"run --kernel 1 ls":              "--kernel 1: ",
	} {
		if _, _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	t.Setenv("LAB_MEM", "much")
	if _, _, err := parse([]string{"x"}); err == nil || !strings.Contains(err.Error(), "LAB_MEM=much: ") {
		t.Error(err)
	}
}

// TestHelp checks that the help explains every flag within 100 columns.
func TestHelp(t *testing.T) {
	if _, _, err := parse(nil); err != errNoProgram {
		t.Error(err)
	}
	for _, args := range [][]string{{"--help"}, {"run", "-h"}} {
		if _, _, err := parse(args); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%v: %v", args, err)
		}
	}
	var b bytes.Buffer
	printHelp(&b)
	for line := range strings.Lines(b.String()) {
		if len(line) > 100 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	new(config).flags().VisitAll(func(f *flag.Flag) {
		if !strings.Contains(b.String(), "  --"+f.Name+" ") || !strings.Contains(b.String(), variable(f)) {
			t.Errorf("--%s is missing", f.Name)
		}
	})
}

// TestTurns checks that no more machines than allowed have a turn, and that others wait.
func TestTurns(t *testing.T) {
	t.Setenv("VERBS_CACHE", t.TempDir())
	take := func(n int) (func(), error) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("too late"))
		defer cancel()
		return takeTurn(ctx, n)
	}
	first, err := take(2)
	if err != nil {
		t.Fatal(err)
	}
	second, err := take(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := take(2); err == nil || err.Error() != "wait for a turn: too late" {
		t.Error(err)
	}
	if done, err := take(0); err != nil {
		t.Error(err)
	} else {
		done()
	}
	waited := make(chan error)
	go func() {
		done, err := takeTurn(t.Context(), 2)
		if err == nil {
			done()
		}
		waited <- err
	}()
	first()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	second()
	if done, err := take(-1); err != nil {
		t.Error(err)
	} else {
		done()
	}
}

// TestDoctor checks that doctor finds what is missing, and says so by its status.
func TestDoctor(t *testing.T) {
	var b bytes.Buffer
	c := config{kernel: kernels[0].name, arch: runtime.GOARCH, options: options{mem: 512}}
	code := doctor(&b, c)
	t.Logf("%s", &b)
	if failed := strings.Contains(b.String(), "FAILED"); failed != (code != 0) {
		t.Errorf("status %d", code)
	}
	b.Reset()
	t.Setenv("PATH", t.TempDir())
	t.Setenv("VERBS_CACHE", "/proc/none")
	c.mem = 1 << 30
	if code := doctor(&b, c); code != 1 {
		t.Errorf("status %d", code)
	}
	for _, want := range []string{"FAILED  tools", "FAILED  cache", "FAILED  memory"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, &b)
		}
	}
}

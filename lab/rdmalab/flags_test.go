//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/internal/machine"
)

// TestFlags checks that flags come before variables, may follow a command, and end at the program.
func TestFlags(t *testing.T) {
	t.Setenv("LAB_KERNEL", "6.1")
	t.Setenv("LAB_MEM", "1024")
	c, rest, err := parse([]string{"-mem", "512", "run", "--peer=6.12", "prog", "--kernel", "x"})
	if err != nil || !slices.Equal(rest, []string{"run", "prog", "--kernel", "x"}) {
		t.Fatal(rest, err)
	}
	if c.Kernel != "6.1" || c.Mem != 512 || c.Peer != "6.12" || c.CPUs != 2 || c.Timeout != 20*time.Minute {
		t.Errorf("%+v", c)
	}
	if c, _, err := parse([]string{"--accel", machine.Dilated, "x"}); err != nil || c.CPUs != 4 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--kernel 5.4 x":                              "--kernel 5.4: not one of 6.12, ",
		"--peer 5.4 x":                                "--peer 5.4: not one of 6.12, ",
		"--arch vax x":                                "--arch vax: not one of amd64, ",
		"--arch arm64 --accel dilated x":              "--arch arm64: ",
		"--arch arm64 --kernel uml x":                 "--kernel uml: not for --arch arm64: ",
		"--arch amd64 --kernel 7.3-16k x":             "--kernel 7.3-16k: not for --arch amd64: ",
		"--arch amd64 --peer 6.12-16k x":              "--peer 6.12-16k: not for --arch amd64: ",
		"--accel hvf x":                               "--accel hvf: not one of kvm, tcg, icount, dilated",
		"--factor 0.5 x":                              "--factor 0.5: not in 1..100",
		"--mem 1 x":                                   "--mem 1: ",
		"--cpus -1 x":                                 "--cpus -1: ",
		"--timeout soon x":                            `invalid value "soon"`,
		"run --nonsense x":                            "-nonsense",
		"--udp 10.9.2.1 x":                            "--udp: the first adapter has no RoCE",
		"--nic connectx-ib --udp 10.9.2.1 x":          "--udp: the first adapter has no RoCE",
		"--nic connectx --udp fd00::1 x":              "--udp fd00::1: not an IPv4 address",
		"--nic connectx --udp 127.0.0.1 x":            "--udp 127.0.0.1: not an IPv4 address",
		"--nic connectx --udp me x":                   `invalid value "me"`,
		"--nic connectx --udp 10.9.2.1 --peer 6.12 x": "--udp does not work with --peer",
		"--peer 6.12 test ./a":                        "test does not work with --peer",
		"--host test":                                 "test does not work with --host",
		"--kernel":                                    "needs an argument",
		"run --kernel 1 ls":                           "--kernel 1: ",
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

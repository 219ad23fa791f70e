// Package examples runs the programs of examples/ as their readers do, on every device, and
// checks their output and exit status. Package interop runs rdma-example, which has two sides
// and counterparts in C.
package examples

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// programs are the examples, with the output of each, and whether it requires features
// that iWARP lacks.
var programs = []struct {
	name    string
	args    []string
	prints  string // the whole output, as a regular expression
	noIWARP bool
	srq     bool
}{
	{"loopback", nil, `SEND: the responder received "hello"
RDMA WRITE: the responder's memory holds "written"
RDMA READ: the requester's memory holds "to be read"
`, true, false},
	{"ud-ping", []string{"-c", "3"}, `"ping 0" answered by QP \d+: "ping 0" in .*
"ping 1" answered by QP \d+: "ping 1" in .*
"ping 2" answered by QP \d+: "ping 2" in .*
3 datagrams sent and answered
`, true, false},
	{"srq-server", []string{"-n", "40"}, "400 requests of 40 connections served from one queue of 40 receives\n", false, true},
	{"many", []string{"-n", "40"}, manyPrints, false, true},
	{"many", []string{"-n", "40", "-rsock"}, manyPrints, false, false},
	{"hello", nil, "received \"hello\"\n", true, false},
}

const manyPrints = `40 connections: \S+ for a set-up, \S+ for a request
memory of both ends of one: -?\d+ KiB resident, \d+ KiB locked, -?\d+ KiB of Go's heap
of the process: \d+ mappings, \d+ files, a pause of \S+ to collect garbage
closed in \S+
`

func TestExamples(t *testing.T) {
	each(t, func(t *testing.T, device, _ string) {
		for _, p := range programs {
			t.Run(p.name, func(t *testing.T) {
				if p.srq && !labtest.Soft {
					labtest.Needs(t, device, uverbs.FeatureSRQ)
				}
				out, errs, exit := run(t, p.name, append([]string{"-d", device}, p.args...)...)
				if p.noIWARP && !labtest.Soft && labtest.IWARP(t, device) {
					refused(t, out, errs, exit, regexp.MustCompile(` on `+device+`: .*(operation not supported|unsupported operation)\n$`))
					return
				}
				if !regexp.MustCompile("^(?:"+p.prints+")$").MatchString(out) || errs != "" || exit != 0 {
					t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
				}
			})
		}
	})
}

// TestDeviceChoice runs the examples without naming a device, and with a device that does
// not exist.
func TestDeviceChoice(t *testing.T) {
	labtest.Require(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			if out, errs, exit := run(t, p.name); exit != 0 || errs != "" {
				t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
			}
			out, errs, exit := run(t, p.name, "-d", "nix")
			there := `rxe0 \(\S+\), siw0 \(\S+\)(, (mlx5|erdma)_\d \(\S+\))*`
			if labtest.Soft {
				there = softName
			}
			refused(t, out, errs, exit, regexp.MustCompile(`^open device nix: no such RDMA device \(there are `+there+`\)\n$`))
		})
	}
}

// TestAll checks that no example is left out.
func TestAll(t *testing.T) {
	dirs := labtest.Must(os.ReadDir("../../examples"))(t)
	known := map[string]bool{
		"rdma-example": true, "rdmacm-connect": true, "msg-send": true, "msg-recv": true,
		"echo": true, "http": true, "grpc": true, "fetch": true, "kv": true, "pingmesh": true, "container": true, "valkey": true, "s3": true,
	}
	for _, p := range programs {
		known[p.name] = true
	}
	for _, d := range dirs {
		if d.IsDir() && !known[d.Name()] {
			t.Errorf("nothing runs examples/%s", d.Name())
		}
	}
}

// TestNames: programs have different names, as make builds all of them into one folder.
func TestNames(t *testing.T) {
	byName := map[string]string{}
	for _, pattern := range []string{"cmd/*", "examples/*", "exporter/cmd/*", "lab/*", "tests/bench/*"} {
		for _, main := range labtest.Must(filepath.Glob("../../" + pattern + "/main.go"))(t) {
			dir := filepath.Dir(main)
			if other := byName[filepath.Base(dir)]; other != "" {
				t.Errorf("%s and %s have the same name", dir, other)
			}
			byName[filepath.Base(dir)] = dir
		}
	}
	if len(byName) < 20 {
		t.Errorf("found only %v", byName)
	}
}

// run runs an example and returns what it prints, and its exit status.
func run(t *testing.T, name string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx := labtest.Within(t, time.Minute)
	cmd := command(t, ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// refused checks that an example fails and prints only one line, the reason.
func refused(t *testing.T, stdout, stderr string, exit int, want *regexp.Regexp) {
	t.Helper()
	if exit != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !want.MatchString(stderr) {
		t.Errorf("exit status %d, output\n%s%s", exit, stdout, stderr)
	}
}

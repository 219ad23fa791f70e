//go:build linux

package upstream

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var lab = flag.String("lab", "", "path of rdmalab; without it nothing is tested")

// block returns the first block of a language in a report.
func block(t *testing.T, report, language string) string {
	t.Helper()
	text, err := os.ReadFile(report + ".md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```"+language+"\n")
	if !found {
		t.Fatalf("%s has no %s", report, language)
	}
	rest, _, _ = strings.Cut(rest, "```")
	return rest
}

func build(t *testing.T, args ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", append([]string{args[0], "-o", program}, args[1:]...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestReproduce runs the program of each report, which still shows the defect. If it does not, the
// kernel has been repaired: the report says since when.
func TestReproduce(t *testing.T) {
	if *lab == "" {
		t.Skip("make upstream has a lab for this")
	}
	const oops = `BUG: |Kernel panic`
	serve := "rping -s -P -a 10.9.1.1 -p 7471 & until timeout 5 rping -c -a 10.9.1.1 -p 7471 -C 1; do sleep 0.2; done; "
	for _, r := range []struct {
		report, kernels string
		run             string // with $P, the program
		sign            string // in what it and the kernel print
	}{
		{"cm-dreq-backlog", "6.18 7.2 7.3", "$P 10.9.0.1", `(?m)^0 of 50`},
		{"cm-establish-dreq", "6.12 6.18 7.2 7.3", `for i in $(seq 24); do $P 10.9.0.1 | grep "took 1m" && break; done`, `took 1m`},
		{"rxe-mw-bounds", "6.12 6.18 7.2 7.3", "$P 10.9.0.1", `(?m)^<nil>\s+"out of bounds"`},
		{"rxe-mw-pd", "6.1", "$P rxe0", `(?m)^<nil>`},
		{"rxe-read-ack", "6.12 6.18 7.2 7.3", "echo 1 >/proc/sys/net/ipv4/conf/v0/accept_local; $P 10.9.0.1 v0 v1", `success, <nil>: "what was there before"`},
		{"rxe-odp-copy", "6.18 7.2 7.3", "$P 10.9.0.1", `at 0: "at offset 1000"`},
		{"rxe-path-mtu", "6.12 6.18 7.2 7.3", "$P rxe0", `active MTU: 1024\s+path MTU 4096: <nil>`},
		{"siw-half-header", "6.12 6.18 7.2 7.3", serve + "$P 10.9.1.1:7471 & sleep 3; rping -c -a 10.9.1.1 -p 7471 -C 1 & sleep 20; kill -0 $! && echo rping waits", `(?m)^rping waits`},
		{"siw-listener", "6.12 6.18 7.2 7.3", serve + "$P 10.9.1.1:7471", `connection refused|refcount_t: underflow`},
		{"siw-other-memory", "6.18 7.2 7.3", "$P 10.9.1.1", `"a secret", <nil>|flushed`},
		{"siw-page-end", "6.12 6.18 7.2 7.3", "$P 10.9.1.1", `(?m)^"over .{4,16}two p"`},
		{"siw-reply", "6.12 6.18 7.2 7.3", "$P 10.9.1.1", oops},
		{"siw-empty-sge", "6.12 6.18 7.2 7.3", "$P -test.run EmptySGEs", oops},
	} {
		t.Run(r.report, func(t *testing.T) {
			var program string
			if r.report == "siw-empty-sge" {
				program = build(t, "test", "-c", "-overlay", overlay(t, r.report), "../../uverbs")
			} else {
				main := filepath.Join(t.TempDir(), "main.go")
				if err := os.WriteFile(main, []byte(block(t, r.report, "go")), 0o666); err != nil {
					t.Fatal(err)
				}
				program = build(t, "build", main)
			}
			for kernel := range strings.FieldsSeq(r.kernels) {
				t.Run(kernel, func(t *testing.T) {
					cmd := exec.Command(*lab, "--kernel", kernel, "--timeout", "10m", "sh", "-c", r.run)
					cmd.Env = append(os.Environ(), "P="+program)
					out, _ := cmd.CombinedOutput() // a crash fails it
					if !regexp.MustCompile(r.sign).Match(out) {
						t.Errorf("no sign of the defect in:\n%s", out)
					}
				})
			}
		})
	}
}

// overlay returns a file for -overlay that takes the lines out which the report's first diff does.
func overlay(t *testing.T, report string) string {
	t.Helper()
	diff := strings.Split(block(t, report, "diff"), "\n")
	file, err := filepath.Abs("../../" + strings.TrimPrefix(diff[0], "--- a/"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var old, lines string
	for _, l := range diff[3:] {
		if rest, ok := strings.CutPrefix(l, "-"); ok {
			old += rest + "\n"
		} else if rest, ok := strings.CutPrefix(l, " "); ok {
			old, lines = old+rest+"\n", lines+rest+"\n"
		}
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s does not have\n%s", file, old)
	}
	dir := t.TempDir()
	patched, description := filepath.Join(dir, "patched.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: patched}})
	if err == nil {
		err = os.WriteFile(patched, []byte(strings.Replace(string(text), old, lines, 1)), 0o666)
	}
	if err == nil {
		err = os.WriteFile(description, replace, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return description
}

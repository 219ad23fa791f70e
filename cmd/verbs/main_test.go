package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	root "github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/cmdline"
)

// TestMain lets the test binary run as verbs.
func TestMain(m *testing.M) {
	if os.Getenv("VERBS_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command returns verbs as a command that has not been started.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "VERBS_TEST_MAIN=1")
	return cmd
}

// try runs a command line.
func try(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = cmdline.Run(t.Context(), &out, &errs, args)
	return status, out.String(), errs.String()
}

// TestUsageErrors checks that mistakes are reported shortly, on standard error.
func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"":                              `verbs: expected one of`,
		"nonsense":                      `verbs: unexpected argument nonsense`,
		"devices --nonsense":            `verbs: unknown flag --nonsense`,
		"perf send lat -s 0 127.0.0.1":  `verbs: size (-s): 0 is not in`,
		"perf send lat -s 1Q 127.0.0.1": `"1Q" is not a size`,
		"ping":                          `verbs: missing flags`,
		"ping -c -S 1":                  `verbs: size (-S): 1 is not in`,
		"ping -c":                       `verbs: address (-a): required for a client`,
		"demo --text=":                  `verbs: text (-s)`,
		"completion powershell":         `must be one of`,
	} {
		status, stdout, stderr := try(t, strings.Fields(line)...)
		if status != 2 || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 2 ||
			!strings.Contains(stderr, ` --help" for help.`) {
			t.Errorf("verbs %s: exit status %d, stdout %q, stderr %q", line, status, stdout, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	status, stdout, stderr := try(t, "--version")
	if status != 0 || !strings.HasPrefix(stdout, "verbs "+root.Version+", go1.") || strings.Count(stdout, "\n") != 1 || stderr != "" {
		t.Errorf("exit status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

// TestDemo runs both sides on a device in user space, as on any machine.
func TestDemo(t *testing.T) {
	out, err := command(t, "demo", "--soft", "-s", "a text").CombinedOutput()
	for _, want := range []string{"client: wrote \"a text\"\n", "client: SUCCESS, source and destination buffers match\n"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// leaves returns all commands.
func leaves(t *testing.T) []*kong.Node {
	t.Helper()
	parser, err := cmdline.NewParser(t.Context(), t.Output(), t.Output(), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model.Leaves(true)
}

// TestHelp checks that each command has examples, whose options exist.
func TestHelp(t *testing.T) {
	if testing.Short() && os.Getenv("VERBS_LAB") != "" {
		t.Skip("passes on the host or fails there")
	}
	t.Setenv("COLUMNS", "80")
	for _, path := range []string{"", "link", "perf", "stat"} {
		if _, stdout, _ := try(t, append(strings.Fields(path), "--help")...); !cli.Fits(stdout, 80) {
			t.Errorf("%s --help has lines of more than 80 columns:\n%s", path, stdout)
		}
	}
	for _, leaf := range leaves(t) {
		path := strings.Fields(leaf.Path())
		status, stdout, stderr := try(t, append(path, "--help")...)
		if !cli.Fits(stdout, 80) || strings.Contains(stdout, "${op}") {
			t.Errorf("%s --help has lines of more than 80 columns, or variables:\n%s", leaf.Path(), stdout)
		}
		if status != 0 || stderr != "" {
			t.Errorf("%s --help: exit status %d, stderr %q", leaf.Path(), status, stderr)
		}
		_, examples, _ := strings.Cut(stdout, "Examples:")
		if strings.Count(examples, "verbs ") < 2 {
			t.Errorf("%s --help has no examples:\n%s", leaf.Path(), stdout)
		}
	}
}

// TestMan formats the manual page, which has all commands.
func TestMan(t *testing.T) {
	status, page, stderr := try(t, "man")
	if status != 0 || stderr != "" {
		t.Fatalf("exit status %d, stderr %q", status, stderr)
	}
	for _, leaf := range leaves(t) {
		if !strings.Contains(page, "\n.SH ") || !strings.Contains(page, ".SS "+strings.ReplaceAll(leaf.Path(), "-", `\-`)) {
			t.Errorf("the page lacks %s", leaf.Path())
		}
	}
	for _, part := range strings.Split(page, "\n.nf\n")[1:] { // where lines keep their breaks: in examples
		unfilled, _, _ := strings.Cut(part, "\n.fi\n")
		for line := range strings.SplitSeq(unfilled, "\n") {
			if !strings.HasPrefix(line, " ") {
				t.Errorf("the page does not fill %q", line)
			}
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		return // the page was checked above
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-Kutf8", "-P-cbou")
	cmd.Stdin = strings.NewReader(page)
	var warnings bytes.Buffer
	cmd.Stderr = &warnings
	text, err := cmd.Output()
	if errors.Is(err, syscall.ENOEXEC) {
		return // the lab emulates another processor and shows this machine's programs
	}
	if err != nil || warnings.Len() > 0 || !bytes.Contains(text, []byte("EXIT STATUS")) {
		t.Errorf("groff: %v\n%s", err, warnings.String())
	}
}

// TestCompletion completes command lines.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"":                    "abi cat check completion conns counters demo devices doctor info link man monitor perf ping ports res stat",
		"p":                   "perf ping ports",
		"perf write-imm ":     "bw lat",
		"perf send lat --max": "--max-lat --max-p99",
		"ping --size 256 -":   "--addr --client --count --debug --help --json --persistent --port --server --size --source --tos --validate --verbose --version",
		"completion ":         "bash fish zsh",
		"cat ":                "",
		"devices --jso":       "--json",
	} {
		words := strings.Split(line, " ")
		status, stdout, stderr := try(t, append([]string{"words", "--"}, words...)...)
		got := strings.Fields(stdout)
		if status != 0 || stderr != "" {
			t.Errorf("%q: exit status %d, stderr %q", line, status, stderr)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, not %q", line, got, want)
		}
	}
}

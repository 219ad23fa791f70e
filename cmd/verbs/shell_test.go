//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/tool"
)

// softHost returns a process's address for a device in user space that no other process has. It
// skips the test in the lab, where the UDP port of such devices belongs to rxe.
func softHost(t *testing.T, n int) string {
	t.Helper()
	if labtest.Lab {
		t.Skip("VERBS_SOFT needs the UDP port that the kernel's rxe has: go test has run it")
	}
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 80+n, pid>>8&0xff, pid&0xff)
}

// inShell runs a script in a shell that finds verbs, which has a device in user space.
func inShell(t *testing.T, shell, script string) string {
	t.Helper()
	dir := t.TempDir()
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, filepath.Join(dir, "verbs"))
	}
	if err != nil {
		t.Fatal(err)
	}
	args := map[string][]string{"bash": {"--norc"}, "zsh": {"-f"}, "fish": {"--no-config"}}[shell]
	cmd := exec.Command(tool.Path(t, shell), append(args, "-c", script)...)
	cmd.Env = append(os.Environ(), "VERBS_TEST_MAIN=1", "VERBS_SOFT="+softHost(t, 3), "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// TestBash completes command lines in bash, as the tab key does.
func TestBash(t *testing.T) {
	got := inShell(t, "bash", `eval "$(verbs completion bash)"
		complete -p verbs
		try() { COMP_LINE=$1 COMP_POINT=${#1}; _verbs; echo "${COMPREPLY[@]}"; }
		try "verbs perf send la"
		try "verbs perf "
		try "verbs info so"
		try "verbs cat -l 127"
		verbs() { printf '%s\n' fd00:9::1 fd00:9::2; } # bash replaces what follows the last colon
		try "verbs cat -l fd00:9:"`)
	want := "complete -o default -F _verbs verbs\nlat\nserver send write write-imm read fetch-add cmp-swap ud\nsoft0\n" + softHost(t, 3) + "\n:1 :2\n"
	if got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestZsh does so in zsh.
func TestZsh(t *testing.T) {
	got := inShell(t, "zsh", `compdef() { echo compdef $*; }
		compadd() { print -r -- ${(P)2}; }
		_files() { echo files; }
		eval "$(verbs completion zsh)"
		try() { words=(verbs "$@"); CURRENT=$#words; _verbs; }
		try perf send la
		try info ""
		try cat -l 127
		try cat ""`)
	if want := "compdef _verbs verbs\nlat\nsoft0\n" + softHost(t, 3) + "\nfiles\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestFish does so in fish.
func TestFish(t *testing.T) {
	got := inShell(t, "fish", `verbs completion fish | source
		complete -C "verbs perf send la"
		complete -C "verbs info "
		complete -C "verbs cat -l 127"`)
	if want := "lat\nsoft0\n" + softHost(t, 3) + "\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestCompletionDevices completes names and addresses of devices where they are wanted.
func TestCompletionDevices(t *testing.T) {
	labtest.Require(t)
	words := func(line string) []string {
		status, stdout, stderr := try(t, append([]string{"words", "--"}, strings.Split(line, " ")...)...)
		if status != 0 || stderr != "" {
			t.Errorf("%q: exit status %d, stderr %q", line, status, stderr)
		}
		return strings.Fields(stdout)
	}
	for _, line := range strings.Split("info |ports |counters |stat |stat show |stat bind |stat auto |doctor |link del |link rename |link move |res -d |res qp --device |perf send lat -d |check -d |perf server --ib-dev |info rx", "|") {
		if got := words(line); !slices.Contains(got, labtest.RXE) {
			t.Errorf("%q: %q", line, got)
		}
	}
	for _, line := range strings.Split("cat -l |cat --listen |ping -s -a |ping -s --addr |ping -c -I |demo -a ", "|") {
		if got := words(line); !slices.Contains(got, labtest.Addr) || !slices.Contains(got, "fd00:9::1") {
			t.Errorf("%q: %q", line, got)
		}
	}
	for _, line := range strings.Split("info x|info rxe0 |stat bind rxe0 |link rename rxe0 |res |cat |ping -c -a |perf send lat ", "|") {
		if got := words(line); slices.Contains(got, labtest.RXE) || slices.Contains(got, labtest.Addr) {
			t.Errorf("%q: %q", line, got)
		}
	}
}

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
	"github.com/goverbs/verbs/lab/internal/session"
)

// testModule writes a module of packages, each with a test of the given body, and returns its
// folder.
func testModule(t *testing.T, bodies map[string]string) string {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	for name, body := range bodies {
		write(name+"/"+name+".go", "package "+name+"\n\nfunc Covered() int { return 1 }\n")
		if body != "" {
			write(name+"/"+name+"_test.go", `package `+name+`

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func sh(t *testing.T, script string) {
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

var _ = fmt.Sprint(os.Args, time.Second)

func Test(t *testing.T) {`+"\n"+body+"\n}\n")
		}
	}
	return dir
}

// TestSession runs packages one after the other, of which some break the machine or hang.
func TestSession(t *testing.T) {
	module := testModule(t, map[string]string{
		"a":         `sh(t, "pwd | grep a$ && touch /root/by-a; sleep 1000 >/dev/null 2>&1 &"); Covered()`,
		"b":         `sh(t, "test -e /root/by-a; ! pgrep sleep"); Covered()`,
		"c":         `t.Error("wrong")`,
		"d_missing": "",
		"e_gone":    `sh(t, "rdma link delete rxe0")`,
		"f_back":    `sh(t, "rdma link show rxe0/1 && ! ip link show extra")`,
		"g_more":    `sh(t, "ip link add extra type dummy")`,
		"h_fresh":   `sh(t, "! ip link show extra")`,
		"i_warns":   `sh(t, "echo 'WARNING: of a test' >/dev/kmsg")`,
		"j_expects": `sh(t, "for l in 'lab: expect warning: of a test' 'WARNING: of a test'; do echo $l >/dev/kmsg; done")`,
		"k_late":    `sh(t, "sleep 1000")`,
		"l_stuck":   `sh(t, "kill -STOP $PPID; sleep 1000")`,
		"m_crash":   `sh(t, "echo c >/proc/sysrq-trigger; sleep 1000")`,
		"n_last":    `sh(t, "rdma link show rxe0/1")`,
	})
	out := t.TempDir()
	cmd, stdout, stderr := lab(t, "test", "-p", "1", "-timeout", "30s", "-coverprofile", filepath.Join(out, "cover"), "./...")
	cmd.Dir = module
	cmd.Env = append(cmd.Env, "LAB_TIMEOUT=20m", "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if code := status(t, cmd.Run()); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	all := stdout.String() + stderr.String()
	for pkg, want := range map[string]string{
		"a": "ok", "b": "ok", "c": "FAIL", "e_gone": "FAIL", "f_back": "ok", "g_more": "ok", "h_fresh": "ok", "i_warns": "FAIL",
		"j_expects": "ok", "k_late": "FAIL", "l_stuck": "FAIL", "m_crash": "FAIL", "n_last": "ok",
	} {
		if !regexp.MustCompile(`(?m)^` + want + `\s+m/` + pkg + `\t`).MatchString(all) {
			t.Errorf("%s is not %s", pkg, want)
		}
	}
	for _, want := range []string{
		"device rxe0, port 4: ACTIVE", "WARNING: of a test", "panic: test timed out after 30s", "still running after SIGQUIT: killed", machine.ErrDown.Error(),
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
	profile, err := os.ReadFile(filepath.Join(out, "cover"))
	if err != nil || len(regexp.MustCompile(`(?m)^m/[ab]/.* 1$`).FindAll(profile, -1)) != 2 {
		t.Errorf("coverage %q, %v", profile, err)
	}
}

// TestSessionJSON checks the events of a package, and that a profile arrives.
func TestSessionJSON(t *testing.T) {
	dir := testModule(t, map[string]string{"a": `fmt.Println("said")`})
	cmd, stdout, stderr := lab(t, "test", "-json", "-memprofile", "mem", "./a")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if code := status(t, cmd.Run()); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	var said []string
	for in := json.NewDecoder(stdout); ; {
		var event struct{ Action, Package, Test, Output string }
		if err := in.Decode(&event); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		said = append(said, strings.TrimSpace(event.Action+" "+event.Test+" "+event.Output))
	}
	for _, want := range []string{"start", "run Test", "output Test said", "pass Test", "pass"} {
		if !bytes.Contains([]byte(strings.Join(said, "\n")+"\n"), []byte(want+"\n")) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "mem")); err != nil {
		t.Error(err)
	}
}

func TestSessionRefuses(t *testing.T) {
	cmd, _, stderr := command(t, "--peer", "6.1", "test", "./...")
	if code := status(t, cmd.Run()); code != job.ExitLab || !strings.Contains(stderr.String(), "test does not work with --peer") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

// TestSessionWithoutProgram prints the help, as outside of a session, and does not join.
func TestSessionWithoutProgram(t *testing.T) {
	t.Setenv(session.Variable, filepath.Join(t.TempDir(), "absent"))
	if code, err := run(t.Context(), nil, machine.Stdio{}); code != job.ExitLab || err != nil {
		t.Errorf("exit status %d, %v", code, err)
	}
}

// TestStacks checks that a test that hangs shows its stacks when it gets SIGQUIT.
func TestStacks(t *testing.T) {
	dir := testModule(t, map[string]string{"a": `fmt.Println("up"); time.Sleep(time.Hour)`})
	build := exec.Command("go", "test", "-c", "-o", "a.test", "./a")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd, _, stderr := lab(t, filepath.Join(dir, "a.test"))
	startUp(t, cmd, stderr)
	cmd.Process.Signal(syscall.SIGQUIT)
	if code := status(t, cmd.Wait()); code != 2 || !strings.Contains(stderr.String(), "SIGQUIT: quit") || !strings.Contains(stderr.String(), "m/a.Test(") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

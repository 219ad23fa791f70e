// Package readme follows the README on a machine without RDMA devices, command by command.
package readme

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestFirstSteps types the commands of the README into a shell: those that make a device, and
// those that run the first program. The shell must print what the README shows. The programs
// are built already, and the interface is the one that the README means: eth0, 10.9.0.1.
func TestFirstSteps(t *testing.T) {
	labtest.Require(t)
	dir := t.TempDir()
	for _, program := range []string{"verbs", "echo"} {
		labtest.Check(t, os.Symlink(labtest.Must(filepath.Abs(labtest.Built(t, program)))(t), filepath.Join(dir, program)))
	}
	sh := open(t, dir)
	sh.expect(`
		for d in rxe0 siw0; do rdma link delete $d; done
		modprobe -r rdma_rxe
		ip link set v0 down; ip link set v0 name eth0; ip link set eth0 up
		verbs devices 2>&1 | grep -o 'no such RDMA device'
	`, "no such RDMA device")

	text := string(labtest.Must(os.ReadFile("../../README.md"))(t))
	sh.expect(block(t, text, "## A device", "sh")+"| grep -c '^    rxe0 .* ACTIVE  *eth0  *10.9.0.1'", "1")

	var command string
	var want []string
	for line := range strings.Lines(block(t, text, "## A first program", "text") + "\n$ exit\n") {
		line = strings.TrimSuffix(line, "\n")
		next, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			want = append(want, line)
			continue
		}
		sh.expect(command, want...)
		command, want = next, nil
	}
	if command != "exit" {
		t.Errorf("the last command is %q", command)
	}
}

// block returns the first block of a language after a heading.
func block(t *testing.T, text, heading, language string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the README has no %q", heading)
	}
	_, rest, ok = strings.Cut(rest, "\n```"+language+"\n")
	if !ok {
		t.Fatalf("%q has no block of %s", heading, language)
	}
	in, _, _ := strings.Cut(rest, "\n```\n")
	return in
}

// shell is a shell in which a reader types.
type shell struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Scanner
}

// open starts a shell in dir, which is also in its PATH. It is root, and need not ask.
func open(t *testing.T, dir string) *shell {
	t.Helper()
	cmd := exec.CommandContext(labtest.Within(t, time.Minute), "sh")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.WaitDelay = time.Second // for what it leaves in the background
	s := &shell{t: t, in: labtest.Must(cmd.StdinPipe())(t)}
	out := labtest.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	s.lines = bufio.NewScanner(out)
	labtest.Check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	s.expect("sudo() { \"$@\"; }")
	return s
}

// expect types commands, and waits for what they print.
func (s *shell) expect(commands string, want ...string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, commands+"\n"); err != nil {
		s.t.Fatal(err)
	}
	for _, line := range want {
		s.lines.Scan()
		if s.lines.Text() != line {
			s.t.Fatalf("%s\nprints %q, not %q", commands, s.lines.Text(), line)
		}
	}
}

package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/tests/workload"
)

func TestMain(m *testing.M) {
	if what := os.Getenv("FAULTS_SERVE"); what != "" {
		layer, addr, _ := strings.Cut(what, " ")
		l, err := workload.ByName(layer)
		if err == nil {
			err = serve(l, addr)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if what := os.Getenv("FAULTS_DIAL"); what != "" {
		if err := dialWithMemlock(what); err != nil {
			fmt.Println(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// exitCorrupt is the exit status of a child that received wrong data.
const exitCorrupt = 3

// serve serves a layer until its listener fails.
func serve(l *workload.Layer, addr string) error {
	s, err := l.Listen(context.Background(), addr, report)
	if err != nil {
		return err
	}
	fmt.Println(s.Addr)
	return s.Wait()
}

// report reports the end of a session of a child.
func report(err error) {
	fmt.Fprintln(os.Stderr, "session:", err)
	if errors.Is(err, workload.ErrData) {
		os.Exit(exitCorrupt)
	}
}

// child is a process that serves a layer.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	addr   string
	stderr bytes.Buffer
	dead   bool
}

// newChild starts a child; more may change its command.
func newChild(t testing.TB, l *workload.Layer, addr string, more ...func(*exec.Cmd)) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	for _, m := range more {
		m(c.cmd)
	}
	c.cmd.Env = append(os.Environ(), "FAULTS_SERVE="+l.Name+" "+addr)
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.addr, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		c.kill()
		t.Fatalf("%v: %s", err, c.stderr.Bytes())
	}
	c.addr = strings.TrimSpace(c.addr)
	t.Cleanup(c.kill) // if the test fails
	return c
}

func (c *child) signal(s unix.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// freeze stops the child, and waits until all its threads have stopped.
func (c *child) freeze() {
	c.t.Helper()
	c.signal(unix.SIGSTOP)
	waitFor(c.t, func() error {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		for _, name := range stats {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if !bytes.Contains(text, []byte(") T ")) {
				return fmt.Errorf("still runs: %s", text)
			}
		}
		return err
	})
}

// kill kills the child and, in a failed test, logs its errors. It may be called again.
func (c *child) kill() {
	c.t.Helper()
	if c.reap() {
		if code := c.cmd.ProcessState.ExitCode(); code != -1 {
			c.t.Errorf("the child ended by itself, with %d", code)
		}
		if c.t.Failed() {
			c.t.Logf("child: %s", c.stderr.Bytes())
		}
	}
}

// end kills a child that may have ended by itself, with status 1.
func (c *child) end() {
	c.t.Helper()
	if c.reap() {
		if code := c.cmd.ProcessState.ExitCode(); code != -1 && code != 1 {
			c.t.Errorf("the child ended with %d", code)
		}
		c.t.Logf("child: %s", c.stderr.Bytes())
	}
}

// reap kills the child and waits for its end. It returns false if that has been done before.
func (c *child) reap() bool {
	if c.dead {
		return false
	}
	c.dead = true
	c.cmd.Process.Kill()
	c.cmd.Wait()
	return true
}

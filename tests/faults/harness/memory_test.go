package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// cgroup is a control group, cgroups(7), whose memory can be limited.
type cgroup struct {
	*env
	dir  string
	file *os.File
}

func newCgroup(e *env) *cgroup {
	e.Helper()
	const root = "/sys/fs/cgroup"
	g := &cgroup{env: e, dir: filepath.Join(root, "faults")}
	labtest.Check(e, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0))
	labtest.Check(e, os.Mkdir(g.dir, 0o755))
	e.Cleanup(func() { os.Remove(g.dir) }) // if the test fails
	var err error
	if g.file, err = os.Open(g.dir); err != nil {
		e.Fatal(err)
	}
	return g
}

// start makes cmd start in the group.
func (g *cgroup) start(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.file.Fd())}
}

func (g *cgroup) set(name string, value any) {
	g.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), fmt.Append(nil, value), 0); err != nil {
		g.Error(err)
	}
}

// eventCount returns the count of an event in memory.events.
func (g *cgroup) eventCount(name string) (n int) {
	g.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	if err != nil {
		g.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, name+" %d", &n)
	}
	return n
}

// end removes the group when its processes have ended.
func (g *cgroup) end() {
	g.Helper()
	g.file.Close()
	waitFor(g, func() error { return os.Remove(g.dir) })
}

// TestMemoryGone sets the peer's memory limit to zero: the kernel kills the peer.
func TestMemoryGone(t *testing.T) {
	runFault(t, fault{title: "the peer's control group has no memory left (memory.max)", run: func(e *env) {
		g := newCgroup(e)
		c, l := e.startLoad(g.start)
		start := time.Now()
		g.set("memory.max", 0)
		e.expectPeerKilled(l, start)
		if g.eventCount("oom_kill") == 0 {
			e.Error("nobody was killed for memory")
		}
		c.kill()
		g.end()
	}})
}

// TestMemoryScarce makes the kernel slow the peer down, by a limit below its memory.
func TestMemoryScarce(t *testing.T) {
	runFault(t, fault{title: "the peer's control group has too much memory (memory.high)", run: func(e *env) {
		g := newCgroup(e)
		c, l := e.startLoad(g.start)
		g.set("memory.high", 64<<10)
		labtest.Check(e, l.waitRounds(10))
		took := l.takeLongest()
		// Another connection needs memory, and may take too long.
		ctx := labtest.Within(e, roundTimeout)
		if s, err := e.layer.Dial(ctx, c.addr); err == nil {
			s.Close()
		} else if !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, context.DeadlineExceeded) {
			e.Error(err)
		}
		if g.eventCount("high") == 0 {
			e.Error("the group was not slowed down")
		}
		g.set("memory.high", "max")
		e.expectStillWorks(c, l, "continues", took)
		g.end()
	}})
}

//go:build linux

package labtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Program is a program that a test has started.
type Program struct {
	T       testing.TB
	Cmd     *exec.Cmd
	Printed chan struct{} // closed when it has printed something
	Done    chan struct{} // closed when it has ended, and Err and Out are complete
	Err     error         // of exec.Cmd.Wait
	Out     Log           // standard output and standard error

	first sync.Once
}

// Write receives the output of the program.
func (p *Program) Write(b []byte) (int, error) {
	defer p.first.Do(func() { close(p.Printed) })
	return p.Out.Write(b)
}

// Start starts a program. After limit, or at the end of the test, it is killed, and its output is
// logged if the test has failed.
func Start(t testing.TB, limit time.Duration, name string, args ...string) *Program {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	p := &Program{T: t, Cmd: exec.CommandContext(ctx, name, args...), Printed: make(chan struct{}), Done: make(chan struct{})}
	p.Cmd.Stdout, p.Cmd.Stderr = p, p
	if err := p.Cmd.Start(); err != nil {
		t.Fatalf("%v (C's programs are Debian's rdmacm-utils, ibverbs-utils and perftest)", err)
	}
	go func() { p.Err = p.Cmd.Wait(); close(p.Done) }()
	t.Cleanup(func() {
		cancel()
		p.awaitKilled()
		if t.Failed() {
			t.Logf("%v:\n%s", p.Cmd, &p.Out)
		}
	})
	return p
}

// Wait checks that the program succeeds, and returns its output.
func (p *Program) Wait() string {
	p.T.Helper()
	<-p.Done
	if p.Err != nil {
		p.T.Errorf("%v: %v", p.Cmd, p.Err)
	}
	return p.Out.String()
}

// Kill kills the program and waits for it.
func (p *Program) Kill() {
	p.T.Helper()
	p.Cmd.Process.Kill()
	p.awaitKilled()
}

// awaitKilled waits for the end of a program that was killed. One that does not end hangs in the kernel.
func (p *Program) awaitKilled() {
	p.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(time.Minute):
		p.T.Fatalf("%v cannot be killed: the lab reports where in the kernel it is", p.Cmd)
	}
}

// Fails checks that the program fails soon, and prints want.
func (p *Program) Fails(want string) {
	p.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(15 * time.Second):
		p.T.Fatalf("%v hangs", p.Cmd)
	}
	if p.Err == nil || !strings.Contains(p.Out.String(), want) {
		p.T.Errorf("%v: %v, without %q", p.Cmd, p.Err, want)
	}
}

// Signal sends a signal to the program.
func (p *Program) Signal(s os.Signal) {
	p.T.Helper()
	Check(p.T, p.Cmd.Process.Signal(s))
}

// ListensTCP waits until a socket listens on a port. It does not try to connect, as the
// program would accept that connection instead of its client's.
func (p *Program) ListensTCP(port int) {
	p.T.Helper()
	socket := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	for range 2000 {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6", "/proc/1/net/tcp", "/proc/1/net/tcp6"} {
			if b, _ := os.ReadFile(table); socket.Match(b) {
				return
			}
		}
		select {
		case <-p.Done:
			p.T.Fatalf("%v: %v", p.Cmd, p.Err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	p.T.Fatalf("nobody listens on TCP port %d", port)
}

// LibDir is Debian's folder for libraries.
var LibDir = "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64", "s390x": "s390x"}[runtime.GOARCH] + "-linux-gnu"

// RDMACore returns the release of the installed rdma-core: 44 of librdmacm.so.1.3.44.0.
func RDMACore(t testing.TB) int {
	t.Helper()
	file := Must(filepath.EvalSymlinks(LibDir + "/librdmacm.so.1"))(t)
	parts := strings.Split(file, ".")
	return Must(strconv.Atoi(parts[len(parts)-2]))(t)
}

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func built(t *testing.T, name string) string {
	t.Helper()
	return labtest.Built(t, name)
}

// compile returns a function that compiles a program in C, once, with these arguments of
// gcc.
func compile(name string, args ...string) func() (path string, err error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", name)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		if out, err := exec.Command("gcc", append([]string{"-O1", "-o", path}, args...)...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc: %w\n%s", err, out)
		}
		return path, nil
	})
}

// program is a running program and its output.
type program struct {
	t       *testing.T
	cmd     *exec.Cmd
	out     bytes.Buffer
	printed chan struct{} // closed when it has printed something
	done    chan struct{}
	err     error
}

// Write receives the output of the program.
func (p *program) Write(b []byte) (int, error) {
	if p.out.Len() == 0 {
		close(p.printed)
	}
	return p.out.Write(b)
}

// start starts a program. At the end of the test it is killed, and its output is logged if
// the test has failed.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	labtest.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	p := &program{t: t, cmd: exec.CommandContext(ctx, name, args...), printed: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v (C's programs are Debian's rdmacm-utils and ibverbs-utils)", err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		cancel()
		<-p.done
		if t.Failed() {
			t.Logf("%v:\n%s", p.cmd, &p.out)
		}
	})
	return p
}

// wait checks that the program succeeds, and returns its output.
func (p *program) wait() string {
	p.t.Helper()
	<-p.done
	if p.err != nil {
		p.t.Errorf("%v: %v", p.cmd, p.err)
	}
	return p.out.String()
}

// kill kills the program and waits for it.
func (p *program) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// libDir is Debian's folder for libraries.
var libDir = "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64", "s390x": "s390x"}[runtime.GOARCH] + "-linux-gnu"

// rdmaCore returns the release of the installed rdma-core: 44 of librdmacm.so.1.3.44.0.
func rdmaCore(t *testing.T) int {
	t.Helper()
	labtest.Require(t)
	file := labtest.Must(filepath.EvalSymlinks(libDir + "/librdmacm.so.1"))(t)
	parts := strings.Split(file, ".")
	return labtest.Must(strconv.Atoi(parts[len(parts)-2]))(t)
}

// retryErrMPA connects to a C server that sends immediately, which siw may take for an MPA
// protocol error: then it connects again. C's own clients have the same problem.
func retryErrMPA(t *testing.T, connect func() error) error {
	t.Helper()
	for try := 1; ; try++ {
		err := connect()
		if !errors.Is(err, cm.ErrMPA) || try == 10 {
			return err
		}
		t.Log(err)
	}
}

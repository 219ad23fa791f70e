//go:build linux

package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
)

// rdmalab test is go test -exec rdmalab with one machine for all packages. The rdmalab that go test
// starts for each package finds a socket in a variable, and there joins a session, which runs the
// packages' tests one after the other. So go test alone decides what to build and to print.
//
//	rdmalab test ─► go test -exec rdmalab ─┬─► rdmalab a.test ─┐ socket
//	 ▲                                     └─► rdmalab b.test ─┤
//	 └─────────────────────────────────────────────────────────┘
//
// On its connection a rdmalab sends a request, and then the number of each signal that it gets. The
// session answers with messages, the last of which has End. All are JSON values. A connection that ends
// early is a program that go test has given up: the machine is killed.
//
// A package may leave the machine broken: then it fails, and the next has a new machine.

// Variable is the environment variable by which a rdmalab finds its session: the path of the socket.
const Variable = "LAB_SESSION"

// session runs programs that are sent to its socket.
type session struct {
	c     Config
	limit time.Duration // of each program

	mu      sync.Mutex // held while a program runs
	runner  machine.Runner
	endTurn func() // set when the session has its turn
}

// request asks a session to run a program.
type request struct {
	Args, Env []string
	Dir       string
}

// message is an answer of a session: output, and then the end.
type message struct {
	Out, Err []byte
	End      bool
	Exit     int
	Error    string
}

// Test runs go test. It ignores c.Peer.
func Test(ctx context.Context, c Config, args []string) (int, error) {
	limit, args, err := takeFlags(args)
	if err != nil {
		return job.ExitLab, err
	}
	if c.Timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("timeout of %v exceeded (--timeout)", c.Timeout))
		defer cancel()
	}
	s := &session{c: c, limit: limit}
	if s.runner.Kernel, err = s.c.prepare(ctx); err != nil {
		return job.ExitLab, err
	}
	dir, err := os.MkdirTemp("", "lab-session-")
	if err != nil {
		return job.ExitLab, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return job.ExitLab, err
	}
	self, err := os.Executable()
	if err != nil {
		return job.ExitLab, err
	}
	// go test would count the time for which a package waits for the machine, so it gets no limit. The
	// session limits each package from its start: see run.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-exec", "'" + self + "'", "-timeout", "0"}, args...)...)
	cmd.Env = append(os.Environ(), Variable+"="+socket)
	if image.ArchByName(c.Arch).Foreign() {
		cmd.Env = append(cmd.Env, "GOARCH="+c.Arch)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return job.ExitLab, err
	}
	var programs sync.WaitGroup
	go s.accept(ctx, l, &programs)
	err = cmd.Wait()
	l.Close()
	programs.Wait()
	s.runner.Stop()
	if s.endTurn != nil {
		s.endTurn()
	}
	if ctx.Err() != nil {
		return job.ExitLab, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return job.ExitStatus(exit.Sys().(syscall.WaitStatus)), nil
	}
	return job.ExitCode(err), err
}

// takeFlags takes -timeout from the arguments of go test, and refuses flags that contradict a machine for all
// packages.
func takeFlags(args []string) (limit time.Duration, rest []string, err error) {
	limit, rest = 10*time.Minute, slices.Clone(args)
	for i := 0; i < len(rest) && rest[i] != "-args" && rest[i] != "--args"; i++ {
		name, value, ok := strings.Cut(strings.TrimLeft(rest[i], "-"), "=")
		if !strings.HasPrefix(rest[i], "-") {
			continue
		}
		switch strings.TrimPrefix(name, "test.") {
		case "asmflags", "gccgoflags", "gcflags", "ldflags":
			if !ok {
				i++ // the value also begins with -
			}
		case "exec": // go test takes the last, and would run the tests on this machine
			return 0, nil, errors.New("test: -exec does not work with rdmalab test, which sets it to run tests in the machine: use go test -exec")
		case "c":
			if on, err := strconv.ParseBool(value); !ok || err != nil || on {
				return 0, nil, errors.New("test: -c does not work with rdmalab test, as it runs no tests: use go test -c")
			}
		case "timeout":
			end := i + 1
			if !ok && end < len(rest) {
				value = rest[end]
				end++
			}
			if limit, err = time.ParseDuration(value); err != nil {
				return 0, nil, fmt.Errorf("test: -timeout: %w", err)
			}
			rest = slices.Delete(rest, i, end)
			i--
		}
	}
	return limit, rest, nil
}

func (s *session) accept(ctx context.Context, l net.Listener, programs *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		programs.Go(func() {
			defer c.Close()
			s.serve(ctx, c)
		})
	}
}

// serve runs the program of a connection.
func (s *session) serve(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, out := json.NewDecoder(c), &messages{to: json.NewEncoder(c)}
	var req request
	if in.Decode(&req) != nil {
		return
	}
	signals := make(chan os.Signal)
	go func() {
		for {
			var sig int
			if in.Decode(&sig) != nil {
				cancel(errors.New("go test has ended its program"))
				return
			}
			select {
			case signals <- unix.Signal(sig):
			case <-ctx.Done():
			}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	end := message{End: true}
	var err error
	end.Exit, err = s.run(ctx, req, machine.Stdio{Out: writer(out.stdout), Err: writer(out.stderr), Signals: signals})
	if err != nil {
		end.Error = err.Error()
	}
	out.send(end)
}

// run runs a program on the session's machine.
func (s *session) run(ctx context.Context, req request, std machine.Stdio) (int, error) {
	if ctx.Err() != nil {
		return job.ExitLab, context.Cause(ctx)
	}
	if s.endTurn == nil {
		var err error
		if s.endTurn, err = takeTurn(ctx, s.c.Parallel); err != nil {
			return job.ExitLab, err
		}
		s.c.choose(ctx, s.runner.Kernel)
		s.runner.Options = s.c.Options
	}
	// The test binary keeps the limit itself, and panics with its stacks. The machine's watch (Task.Limit)
	// is for a binary that does not: it sends SIGQUIT and then SIGKILL, each some seconds later.
	isTimeout := func(a string) bool { return strings.HasPrefix(a, machine.TimeoutFlag) }
	args := slices.DeleteFunc(req.Args, isTimeout)
	if len(args) == 0 {
		return job.ExitLab, errors.New("no program to run")
	}
	if s.limit > 0 {
		args = slices.Insert(args, 1, machine.TimeoutFlag+s.limit.String())
	}
	t, err := machine.NewTask(s.runner.Kernel, s.c.Options, s.c.Write, args, req.Env, req.Dir)
	if err != nil {
		return job.ExitLab, err
	}
	t.Shared, t.Limit = true, s.limit
	r, err := s.runner.Run(ctx, t, std)
	if err != nil {
		return job.ExitLab, err
	}
	if len(r.Left) > 0 {
		fmt.Fprintf(std.Err, "lab: a new machine for the next package, because this one left\n%s\n", strings.Join(r.Left, "\n"))
	}
	return t.Finish(r)
}

// messages sends messages of several goroutines.
type messages struct {
	mu sync.Mutex
	to *json.Encoder
}

func (m *messages) send(msg message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.to.Encode(msg)
}

func (m *messages) stdout(b []byte) error { return m.send(message{Out: b}) }
func (m *messages) stderr(b []byte) error { return m.send(message{Err: b}) }

// writer is an io.Writer that calls a function.
type writer func([]byte) error

func (w writer) Write(b []byte) (int, error) { return len(b), w(b) }

// Join runs a program in a session.
func Join(ctx context.Context, socket string, args []string, std machine.Stdio) (int, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return job.ExitLab, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	dir, err := os.Getwd()
	if err != nil {
		return job.ExitLab, err
	}
	out, in := json.NewEncoder(c), json.NewDecoder(c)
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, Variable+"=") })
	if err := out.Encode(request{Args: args, Env: env, Dir: dir}); err != nil {
		return job.ExitLab, err
	}
	go func() {
		for sig := range std.Signals {
			out.Encode(int(sig.(unix.Signal)))
		}
	}()
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else if errors.Is(err, io.EOF) {
				err = errors.New("the session has ended")
			}
			return job.ExitLab, err
		}
		_, outErr := std.Out.Write(m.Out)
		_, errErr := std.Err.Write(m.Err)
		if err := job.OutputError(cmp.Or(outErr, errErr)); err != nil {
			return job.ExitLab, err
		}
		if m.End {
			if m.Error != "" {
				err = errors.New(m.Error)
			}
			return m.Exit, err
		}
	}
}

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a virtual machine. It runs programs one after the other.
type machine struct {
	k     kernel
	opt   options
	dir   string // of its sockets and console
	cmd   *exec.Cmd
	log   bytes.Buffer // of QEMU, complete when the machine is gone
	state *state
	kill  func() // ends the machine at once

	stdout, stderr outlet
	stdin          chan net.Conn // gets the port
	port           net.Conn      // of orders and reports, set before the first report
	reports        chan string   // lines; closed when the machine is gone and all output has arrived
	copiers        sync.WaitGroup
	gone           chan struct{} // closed when the machine is gone
	err            error         // of cmd, when it is gone
	ready          bool          // it takes an order
}

// startMachine starts a machine, which boots while the caller goes on. The caller stops it.
func startMachine(k kernel, s setup, write string, opt options) (_ *machine, err error) {
	m := &machine{k: k, opt: opt, stdin: make(chan net.Conn, 1), reports: make(chan string, 16), gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	m.kill = cancel
	var listeners []net.Listener
	defer func() {
		if err != nil {
			m.kill()
			for _, l := range listeners {
				l.Close()
			}
			m.discard()
		}
	}()
	if m.dir, err = os.MkdirTemp("", "lab-"); err != nil {
		return nil, err
	}
	initramfs := filepath.Join(m.dir, "initramfs")
	if err := writeInitramfs(initramfs, k, s, opt.modules()); err != nil {
		return nil, err
	}
	for _, name := range ports {
		l, err := net.Listen("unix", filepath.Join(m.dir, name))
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
	}
	command := qemuCommand
	if k.uml() {
		command = umlCommand
	}
	if m.cmd, err = command(ctx, k, opt, m.dir, initramfs, write); err != nil {
		return nil, err
	}
	if m.state, err = newState(k, opt, m.cmd, m.dir); err != nil {
		return nil, err
	}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// User-mode Linux has a process for each process of the guest.
	m.cmd.Cancel = func() error { return syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) }
	m.cmd.WaitDelay = 2 * time.Second
	m.cmd.Stderr = &m.log
	m.serve(listeners[0], func(c net.Conn) {
		m.stdin <- c
		<-m.gone // closed earlier, QEMU would drop what the guest has yet to read
	})
	m.serve(listeners[1], func(c net.Conn) { io.Copy(&m.stdout, c) })
	m.serve(listeners[2], func(c net.Conn) { io.Copy(&m.stderr, c) })
	m.serve(listeners[3], func(c net.Conn) { m.receive(c, maxReport) })
	started := make(chan error)
	go m.live(started, listeners)
	if err := <-started; err != nil {
		return nil, err
	}
	if opt.debug {
		go follow(ctx, filepath.Join(m.dir, "console"), os.Stderr)
	}
	return m, nil
}

// live starts the process and waits for its end.
func (m *machine) live(started chan<- error, listeners []net.Listener) {
	// The machine dies with this thread, so the thread must outlive it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := m.cmd.Start()
	for _, f := range m.cmd.ExtraFiles {
		f.Close()
	}
	started <- err
	if err == nil {
		m.err = m.cmd.Wait()
	}
	for _, l := range listeners {
		l.Close()
	}
	close(m.gone)
	m.copiers.Wait()
	close(m.reports)
}

// serve calls use with the connection of a port.
func (m *machine) serve(l net.Listener, use func(net.Conn)) {
	m.copiers.Go(func() {
		if c, err := l.Accept(); err == nil {
			use(c)
			c.Close()
		}
	})
}

// maxReport bounds a report, which has the files that a program wrote.
const maxReport = 1 << 29

// receive receives the guest's reports, each of at most a number of bytes.
func (m *machine) receive(c net.Conn, most int64) {
	m.port = c
	if m.state.restored {
		m.reports <- ready // which it has reported before it was saved
	}
	limit := &io.LimitedReader{R: c}
	for in := bufio.NewReader(limit); ; {
		limit.N = most
		line, err := in.ReadString('\n')
		if err != nil && limit.N == 0 {
			fmt.Fprintf(os.Stderr, "lab: the guest's report has more than %d bytes: the machine is killed\n", most)
			m.kill()
		}
		if err != nil { // the machine is gone
			return
		}
		select {
		case m.reports <- line:
		case <-m.gone:
			return
		}
	}
}

// stop ends the machine and returns when it is gone. The guest has no part in that: it holds back
// nothing that a program has written to a folder of this machine, and the shutdown of its drivers
// would take a second.
func (m *machine) stop() {
	m.kill()
	for range m.reports {
	}
	m.discard()
}

// discard removes what is left of a machine that is gone.
func (m *machine) discard() {
	if m.opt.net != nil {
		m.opt.net.detach(m.opt.host)
	}
	os.RemoveAll(m.dir)
}

// console returns the end of the kernel's log.
func (m *machine) console() []byte {
	const most = 16 << 20
	f, err := os.Open(filepath.Join(m.dir, "console"))
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return b
}

// The limits of the time until the program starts: of one of two machines, for which the other
// waits, and of others.
const (
	pairBootLimit = 90 * time.Second
	bootLimit     = 10 * time.Minute
)

// run runs a program. It fails if the machine is of no more use.
func (m *machine) run(ctx context.Context, t task, std stdio) (result, error) {
	m.stdout.to(std.out)
	m.stderr.to(std.err)
	defer m.stdout.to(io.Discard)
	defer m.stderr.to(io.Discard)
	out, errs := m.stdout.n.Load(), m.stderr.n.Load()
	t.Stdin = std.in != nil
	limit := bootLimit
	if m.opt.net != nil {
		limit = pairBootLimit
	}
	boot := time.NewTimer(limit)
	defer boot.Stop()
	w := &watch{m: m, task: &t, std: std, clock: clockCheck{factor: m.opt.factor}}
	if m.ready {
		w.give()
	}
	for done := ctx.Done(); !w.done; {
		select {
		case <-done:
			done = nil
			w.fail(fmt.Errorf("stopped: %w", context.Cause(ctx)))
		case <-boot.C:
			if w.phase == phaseWaiting {
				w.fail(fmt.Errorf("%w in %v", errBoot, limit))
			}
		case <-w.signals:
			w.phase = max(w.phase, phaseAsked)
			w.signal(unix.SIGQUIT)
		case <-w.overdue:
			w.late()
		case line, ok := <-m.reports:
			if !ok {
				m.ready = false
				return w.result, m.verdict(w.failed, w.phase != phaseWaiting)
			}
			w.report(line)
		}
	}
	return w.result, m.await(ctx, out+w.result.Out, errs+w.result.Err)
}

// phase is how far a program is. The guest reports the start and the end; between them the host may ask the
// program to end.
type phase uint8

const (
	phaseWaiting phase = iota
	phaseRunning
	phaseAsked  // by SIGQUIT, for stacks
	phaseKilled // by SIGKILL
	phaseOver   // it has ended, and the guest is cleaned
)

// watch follows a program from the job to the result.
type watch struct {
	m       *machine
	task    *task
	std     stdio
	clock   clockCheck
	phase   phase
	done    bool             // there is a result
	failed  error            // why the machine is killed
	signals <-chan os.Signal // nil until the program runs
	overdue <-chan time.Time // of the program, or of what it is to do after a signal
	result  result
}

func (w *watch) fail(err error) {
	if w.failed == nil {
		w.failed = err
	}
	w.m.kill()
}

func (w *watch) give() {
	if err := w.m.give(w.task); err != nil {
		w.fail(err)
	}
}

func (w *watch) signal(sig unix.Signal) {
	json.NewEncoder(w.m.port).Encode(order{Signal: int(sig)})
	w.overdue = time.After(w.task.patience())
}

// late asks a program for its stacks, and then kills it, and then the machine.
func (w *watch) late() {
	switch {
	case w.phase == phaseRunning:
		w.phase = phaseAsked
		fmt.Fprintf(w.std.err, "lab: timeout of %v exceeded; the program's stacks:\n", w.task.limit)
		w.signal(unix.SIGQUIT)
	case w.phase == phaseAsked:
		w.phase = phaseKilled
		fmt.Fprintln(w.std.err, "lab: still running after SIGQUIT: killed")
		w.signal(unix.SIGKILL)
	default:
		w.fail(fmt.Errorf("%w: it does not answer", errDown))
	}
}

// report takes what the guest reports. What it reports out of turn comes from a program that has taken the
// port: the state of a machine that has run one, for example, is not to be saved.
func (w *watch) report(line string) {
	switch m := w.m; {
	case line == ready && !m.ready:
		m.ready = true
		if err := m.state.save(); err != nil {
			fmt.Fprintf(os.Stderr, "lab: the machine could not be saved: %v\n", err)
		}
		w.give() // the guest mounts folders while adapters are plugged in
		if err := m.plug(); err != nil {
			select {
			case <-m.gone: // the end of reports shows why
			case <-time.After(time.Second):
				w.fail(err)
			}
		}
	case line == started && w.phase == phaseWaiting:
		w.phase, w.signals = phaseRunning, w.std.signals
		if w.task.limit > 0 {
			w.overdue = time.After(w.task.limit + w.task.patience())
		}
		if w.std.in != nil {
			go func() { // not waited for: stdin may block forever
				feed(<-m.stdin, w.std.in)
			}()
		}
	case line == ended && w.phase != phaseWaiting && w.phase != phaseOver:
		w.phase, w.signals = phaseOver, nil
		if w.task.limit > 0 {
			w.overdue = time.After(time.Minute) // in which the guest is cleaned
		}
	case strings.HasPrefix(line, clockMark):
		if err := w.clock.mark(line); err != nil {
			w.fail(err)
		}
	default:
		if err := json.Unmarshal([]byte(line), &w.result); err != nil {
			w.fail(fmt.Errorf("the guest reports %.100q: %w", line, err))
		} else if w.result.Error != "" {
			w.fail(fmt.Errorf("in the guest: %s", w.result.Error))
		} else {
			w.done = true
		}
	}
}

// give gives the guest a job.
func (m *machine) give(t *task) error {
	if m.state.restored {
		t.Restored = newFresh()
	}
	var err error
	if t.Args, err = shorten(t.Args, t.begun); err != nil {
		return err
	}
	json.NewEncoder(m.port).Encode(order{Job: &t.job}) // it fails if the machine is gone, which the end of reports shows
	return nil
}

// await waits until all output of a program has arrived, of which the guest has told the size.
func (m *machine) await(ctx context.Context, stdout, stderr int64) error {
	for m.stdout.n.Load() < stdout || m.stderr.n.Load() < stderr {
		select {
		case <-time.After(time.Millisecond):
		case <-m.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
	}
	return nil
}

// verdict returns why a machine is gone, which has started a program or not.
func (m *machine) verdict(failed error, started bool) error {
	console := m.console()
	switch {
	case failed != nil:
		return fmt.Errorf("%w%s", failed, tail(console))
	case !started && m.state.restored:
		os.Remove(m.state.file)
		return fmt.Errorf("%w: %s is of no use: %s%s", errBoot, m.state.file, m.log.Bytes(), tail(console))
	case !started && m.err != nil:
		return fmt.Errorf("machine: %w\n%s%s", m.err, m.log.Bytes(), tail(console))
	case !started:
		return fmt.Errorf("%w%s", errBoot, tail(console))
	case bytes.Contains(console, []byte("Oops: int3: ")):
		return fmt.Errorf("%w: %w%s", errDown, errPatched, tail(console))
	}
	return fmt.Errorf("%w%s", errDown, tail(console))
}

// outlet is where a port's output goes. A closed output does not block the guest.
type outlet struct {
	mu sync.Mutex
	w  io.Writer
	n  atomic.Int64 // bytes that have arrived
}

func (o *outlet) Write(b []byte) (int, error) {
	o.mu.Lock()
	if o.w != nil {
		o.w.Write(b)
	}
	o.mu.Unlock()
	o.n.Add(int64(len(b)))
	return len(b), nil
}

func (o *outlet) to(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w = w
}

// runner runs programs on a machine, which it boots when it is needed.
type runner struct {
	k       kernel
	opt     options
	machine *machine
}

// stop ends the machine, if there is one.
func (n *runner) stop() {
	if n.machine != nil {
		n.machine.stop()
		n.machine = nil
	}
}

// run runs a program, and again if the kernel does not come up. QEMU's emulation of
// several processors sometimes runs code that the kernel has just patched, which is
// frequent during boot, and the kernel crashes. When the kernel crashes so under tests,
// and its log shows the cause, they are run again too: tests have no input and may be
// repeated.
func (n *runner) run(ctx context.Context, t task, std stdio) (r result, err error) {
	for range 4 {
		r, err = n.once(ctx, t, std)
		switch {
		case errors.Is(err, errBoot):
			fmt.Fprintln(os.Stderr, "lab: the kernel did not come up; trying again")
		case errors.Is(err, errClock):
			fmt.Fprintf(os.Stderr, "lab: %v; trying again\n", err)
		case errors.Is(err, errPatched) && t.Host == 0 && strings.HasSuffix(t.Args[0], ".test"):
			fmt.Fprintf(os.Stderr, "lab: %v; trying again\n", errPatched)
		default:
			return r, err
		}
	}
	return r, err
}

func (n *runner) once(ctx context.Context, t task, std stdio) (r result, err error) {
	if limit := n.opt.timeout; limit > 0 { // of each attempt
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("timeout of %v exceeded (--timeout)", limit))
		defer cancel()
	}
	if n.machine == nil {
		if n.machine, err = startMachine(n.k, t.setup, t.Write, n.opt); err != nil {
			return r, err
		}
	}
	r, err = n.machine.run(ctx, t, std)
	if t.Host == peerHost { // the guest may have ended without reading its log
		if w := warnings(strings.Lines(string(n.machine.console()))); len(w) > 0 {
			err = fmt.Errorf("%w:\n%s", errWarned, strings.Join(w, "\n"))
		}
	}
	if err != nil || len(r.Kernel) > 0 || len(r.Lost) > 0 || len(r.Left) > 0 {
		n.stop()
	}
	return r, err
}

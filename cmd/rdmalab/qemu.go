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
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type stdio struct {
	in       io.Reader
	out, err io.Writer
	started  func(port net.Conn) // if set, runs with the guest's stdin once the program runs
}

// The ports between host and guest, by name.
const (
	portIn     = "stdin"
	portOut    = "stdout"
	portErr    = "stderr"
	portResult = "result"
)

var ports = []string{portIn, portOut, portErr, portResult}

// errBoot reports a kernel that went down before the program started.
var errBoot = errors.New("the kernel did not come up")

// errPatched reports a kernel that ran into a breakpoint of its own: see bootWithRetry.
var errPatched = errors.New("the kernel ran code that it had just patched")

// bootLimit is how long each of two machines may take until the program starts.
const bootLimit = 90 * time.Second

// errWarned reports a kernel that logged a bug of its own.
var errWarned = errors.New("the kernel warned")

// bootWithRetry calls boot, and again if the kernel does not come up. QEMU's emulation of
// several processors sometimes runs code that the kernel has just patched, which is
// frequent during boot, and the kernel crashes. When the kernel crashes so under tests,
// and its log shows the cause, they are run again too: tests have no input and may be
// repeated.
func bootWithRetry(ctx context.Context, k kernel, j job, opt options, std stdio) (code int, err error) {
	for range 4 {
		code, err = boot(ctx, k, j, opt, std)
		switch {
		case errors.Is(err, errBoot):
			fmt.Fprintln(os.Stderr, "lab: the kernel did not come up; once more")
		case errors.Is(err, errClock):
			fmt.Fprintf(os.Stderr, "lab: %v; once more\n", err)
		case errors.Is(err, errPatched) && j.Host == 0 && strings.HasSuffix(j.Args[0], ".test"):
			fmt.Fprintf(os.Stderr, "lab: %v; once more\n", errPatched)
		default:
			return code, err
		}
	}
	return code, err
}

// boot runs j on k and returns its exit status. When it returns, the machine
// is gone.
func boot(ctx context.Context, k kernel, j job, opt options, std stdio) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opt.timeout, fmt.Errorf("no end after %v (--timeout)", opt.timeout))
	defer cancel()
	dir, err := os.MkdirTemp("", "lab-")
	if err != nil {
		return exitLab, err
	}
	defer os.RemoveAll(dir)
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(initramfs, k, j.setup); err != nil {
		return exitLab, err
	}

	var listeners []net.Listener
	for _, name := range ports {
		sock := filepath.Join(dir, name)
		l, err := net.Listen("unix", sock)
		if err != nil {
			return exitLab, err
		}
		defer l.Close()
		listeners = append(listeners, l)
	}
	machine := qemuCommand
	if k.uml() {
		machine = umlCommand
	}
	vm, err := machine(ctx, k, opt, dir, initramfs, j.Write)
	if err != nil {
		return exitLab, err
	}
	if opt.net != nil {
		defer opt.net.detach(opt.host)
	}
	state, err := newState(k, opt, vm, dir)
	if err != nil {
		return exitLab, err
	}

	// The machine dies with this thread, so the thread must outlive it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	vm.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// User-mode Linux has a process for each process of the guest.
	vm.Cancel = func() error { return syscall.Kill(-vm.Process.Pid, syscall.SIGKILL) }
	vm.WaitDelay = 2 * time.Second
	var vmStderr bytes.Buffer
	vm.Stderr = &vmStderr
	err = vm.Start()
	for _, f := range vm.ExtraFiles {
		f.Close()
	}
	if err != nil {
		return exitLab, err
	}
	exited, vmDone := make(chan error, 1), make(chan struct{})
	go func() {
		exited <- vm.Wait()
		close(vmDone)
		for _, l := range listeners {
			l.Close()
		}
	}()
	if opt.debug {
		go follow(ctx, filepath.Join(dir, "console"), os.Stderr)
	}

	stdout, stderr := &counter{w: io.Discard}, &counter{w: io.Discard}
	rep := &report{up: make(chan struct{}), clock: clockCheck{factor: opt.factor}, state: state, job: j}
	var timedOut atomic.Bool
	if opt.net != nil { // the other machine waits; for a single one --timeout is enough
		watch := time.AfterFunc(bootLimit, func() {
			select {
			case <-rep.up:
			default:
				timedOut.Store(true)
				vm.Cancel()
			}
		})
		defer watch.Stop()
	}
	var copiers sync.WaitGroup
	serve := func(l net.Listener, use func(net.Conn)) {
		copiers.Go(func() {
			if c, err := l.Accept(); err == nil {
				use(c)
				c.Close()
			}
		})
	}
	output := func(w io.Writer, n *counter) func(net.Conn) {
		return func(c net.Conn) {
			in := io.TeeReader(c, n)
			io.Copy(w, in)
			io.Copy(io.Discard, in) // a closed output must not block the guest
		}
	}
	serve(listeners[1], output(std.out, stdout))
	serve(listeners[2], output(std.err, stderr))
	serve(listeners[3], func(c net.Conn) {
		if rep.read(c, stdout, stderr); rep.err != nil {
			vm.Cancel()
		}
	})
	go func() { // not waited for: stdin may block forever
		c, err := listeners[0].Accept()
		if err != nil {
			return
		}
		select {
		case <-rep.up: // input is left for the next attempt until the program runs
			if std.started != nil {
				go std.started(c)
			}
			feed(c, std.in)
			<-vmDone // closed earlier, QEMU would drop what the guest has yet to read
		case <-vmDone:
		}
		c.Close()
	}()
	err = <-exited
	copiers.Wait()

	console, _ := os.ReadFile(filepath.Join(dir, "console"))
	if j.Host == peerHost { // the guest may have ended without reading its log
		if w := warnings(strings.Lines(string(console))); len(w) > 0 {
			return exitLab, fmt.Errorf("%w:\n%s", errWarned, strings.Join(w, "\n"))
		}
	}
	switch {
	case ctx.Err() != nil:
		return exitLab, fmt.Errorf("stopped: %w%s", context.Cause(ctx), tail(console))
	case timedOut.Load() && !rep.started:
		return exitLab, fmt.Errorf("%w in %v%s", errBoot, bootLimit, tail(console))
	case rep.err != nil:
		return exitLab, rep.err
	case !rep.started && state.restored:
		os.Remove(state.file)
		return exitLab, fmt.Errorf("%w: %s is of no use: %s%s", errBoot, state.file, vmStderr.Bytes(), tail(console))
	case !rep.started && err != nil:
		return exitLab, fmt.Errorf("machine: %w\n%s%s", err, vmStderr.Bytes(), tail(console))
	case !rep.started && !rep.ended:
		return exitLab, fmt.Errorf("%w%s", errBoot, tail(console))
	case !rep.ended && bytes.Contains(console, []byte("Oops: int3: ")):
		return exitLab, fmt.Errorf("%w: %w%s", errDown, errPatched, tail(console))
	case !rep.ended:
		return exitLab, fmt.Errorf("%w%s", errDown, tail(console))
	}
	r := rep.result
	if r.Error != "" {
		return exitLab, fmt.Errorf("in the guest: %s%s", r.Error, tail(console))
	}
	if len(r.Kernel) > 0 {
		err = fmt.Errorf("%w:\n%s", errWarned, strings.Join(r.Kernel, "\n"))
		if r.Exit == 0 {
			r.Exit = exitLab
		}
		return r.Exit, err
	}
	return r.Exit, nil
}

// report is what the guest sends besides the program's output.
type report struct {
	state   *state
	job     job
	up      chan struct{} // closed when the program starts
	started bool
	ended   bool
	clock   clockCheck
	result  result
	err     error
}

// read sends the guest its job, reads the whole report, and answers when all output has arrived.
func (r *report) read(c net.Conn, stdout, stderr *counter) {
	if r.state.restored {
		r.job.Restored = newFresh()
		json.NewEncoder(c).Encode(r.job)
	}
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadString('\n')
		switch {
		case err != nil: // the machine is gone
			return
		case line == ready:
			if err := r.state.save(); err != nil {
				fmt.Fprintf(os.Stderr, "lab: the machine could not be saved: %v\n", err)
			}
			json.NewEncoder(c).Encode(r.job)
			continue
		case line == started:
			r.started = true
			close(r.up)
			continue
		case strings.HasPrefix(line, clockMark):
			if r.err = r.clock.mark(line); r.err != nil {
				return
			}
			continue
		}
		if err := json.Unmarshal([]byte(line), &r.result); err != nil {
			r.err = fmt.Errorf("result %q: %w", line, err)
			return
		}
		r.ended = true
		for stdout.n.Load() < r.result.Out || stderr.n.Load() < r.result.Err {
			time.Sleep(time.Millisecond)
		}
		c.Write([]byte{0})
	}
}

// counter counts what it writes.
type counter struct {
	w io.Writer
	n atomic.Int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// feed sends stdin as frames of a two-byte length and data, with an empty frame
// as its end: a serial port has no end of file.
func feed(w io.Writer, r io.Reader) {
	buf := make([]byte, 2+4096)
	for {
		n, err := r.Read(buf[2:])
		if n > 0 {
			buf[0], buf[1] = byte(n>>8), byte(n)
			if _, err := w.Write(buf[:2+n]); err != nil {
				return
			}
		}
		if err != nil {
			w.Write([]byte{0, 0})
			return
		}
	}
}

// tail returns the end of the kernel's console, for an error message.
func tail(console []byte) string {
	const limit = 4 << 10
	if len(console) > limit {
		console = console[len(console)-limit:]
	}
	if len(bytes.TrimSpace(console)) == 0 {
		return ""
	}
	return "\n--- kernel console ---\n" + strings.TrimSpace(string(console))
}

// follow copies a file that is being written.
func follow(ctx context.Context, file string, w io.Writer) {
	var f *os.File
	for ctx.Err() == nil {
		if f == nil {
			f, _ = os.Open(file)
		}
		if f != nil {
			io.Copy(w, f)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// accelerator boots the kernel under KVM once and records whether it succeeds: in a
// nested machine /dev/kvm may exist although guests hang.
func accelerator(ctx context.Context, k kernel, opt options) string {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg"
	} else {
		f.Close()
	}
	cacheFile := filepath.Join(k.root, "kvm-"+hostID())
	if b, err := os.ReadFile(cacheFile); err == nil {
		return string(b)
	}
	fmt.Fprintln(os.Stderr, "lab: trying KVM, once")
	opt.accel, opt.timeout = "kvm", 10*time.Second
	accel := "tcg"
	code, err := boot(ctx, k, job{setup: setup{Probe: true, Release: k.release}}, opt, stdio{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
	if err == nil && code == 0 {
		accel = "kvm"
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		os.WriteFile(cacheFile, []byte(accel), 0o644)
	}
	fmt.Fprintf(os.Stderr, "lab: using %s\n", accel)
	return accel
}

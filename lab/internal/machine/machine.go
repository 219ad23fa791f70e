//go:build linux

// Package machine runs programs on machines: QEMU and User-mode Linux, their adapters, the wires
// between two of them, and their saved states. It does not trust a guest's reports.
package machine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// machine is a virtual machine. It runs programs one after the other.
type machine struct {
	k     image.Kernel
	opt   Options
	dir   string // of its sockets and console
	cmd   *exec.Cmd
	log   bytes.Buffer // of QEMU, complete when the machine is gone
	state *state
	kill  func() // ends the machine at once

	stdout, stderr job.Outlet
	stdin          chan net.Conn // gets the port
	port           net.Conn      // of orders and reports, set before the first report
	reports        chan string   // lines; closed when the machine is gone and all output has arrived
	copiers        sync.WaitGroup
	gone           chan struct{} // closed when the machine is gone
	err            error         // of cmd, when it is gone
	ready          bool          // it takes an order
}

// startMachine starts a machine, which boots while the caller goes on. The caller stops it.
func startMachine(k image.Kernel, s job.Setup, write string, opt Options) (_ *machine, err error) {
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
	if err := image.WriteInitramfs(initramfs, k, s, opt.modules()); err != nil {
		return nil, err
	}
	for _, name := range job.Ports {
		l, err := net.Listen("unix", filepath.Join(m.dir, name))
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
	}
	command := qemuCommand
	if k.UML() {
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
		<-m.gone // if c closed earlier, QEMU would drop input that the guest has yet to read
	})
	m.serve(listeners[1], func(c net.Conn) { io.Copy(&m.stdout, c) })
	m.serve(listeners[2], func(c net.Conn) { io.Copy(&m.stderr, c) })
	m.serve(listeners[3], func(c net.Conn) { m.receive(c, maxReport) })
	started := make(chan error)
	go m.live(started, listeners)
	if err := <-started; err != nil {
		return nil, err
	}
	if opt.Debug {
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
		m.reports <- job.Ready // the guest reported it before it was saved
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

// stop ends the machine and returns when it is gone. It does not shut the guest down, which would take
// a second: writes to a folder of this machine are not delayed.
func (m *machine) stop() {
	m.kill()
	for range m.reports {
	}
	m.discard()
}

// discard removes the files of a machine that is gone.
func (m *machine) discard() {
	if m.opt.net != nil {
		m.opt.net.detach(m.opt.number)
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

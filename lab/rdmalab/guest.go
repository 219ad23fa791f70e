//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestMain is the guest's /init. If that fails, it powers the machine off.
func guestMain() {
	if err := guest(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err) // stderr is the console
		unix.Sync()
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func guest() error {
	text, err := os.ReadFile("/setup.json")
	if err != nil {
		return err
	}
	var s setup
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	for _, m := range []mount{{"devtmpfs", "/dev", "devtmpfs", ""}, {"proc", "/proc", "proc", ""}, {"sysfs", "/sys", "sysfs", ""}} {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := warmUp(); err != nil {
		return err
	}
	if s.Modules != "" { // not User-mode Linux, whose processors are all up
		if err := onlineCPUs(); err != nil {
			return err
		}
	}
	for _, m := range s.Early {
		if err := loadModule("/" + m); err != nil {
			return err
		}
	}
	port, err := openPort(portResult)
	if err != nil {
		return err
	}
	if !s.Probe {
		err = obey(s, port)
	}
	if s.Probe || err != nil {
		r := result{}
		if err != nil {
			r.Exit, r.Error = exitLab, err.Error()
		}
		json.NewEncoder(port).Encode(r)
		port.Read(make([]byte, 1)) // until the host has read it
	}
	return err
}

// obey makes the devices, reports that this machine is ready, and does its jobs.
func obey(s setup, port *os.File) error {
	if err := addDevices(s); err != nil {
		return err
	}
	if _, err := port.WriteString(ready); err != nil {
		return err
	}
	orders := json.NewDecoder(port)
	var first order
	if err := orders.Decode(&first); err != nil || first.Job == nil {
		return err
	}
	if j := first.Job; j.Restored != nil {
		if err := j.Restored.apply(); err != nil {
			return err
		}
	}
	w, err := newWorker(*first.Job, port)
	if err != nil {
		return err
	}
	queue := make(chan order)
	go func() {
		defer close(queue)
		queue <- first
		for {
			var o order
			if orders.Decode(&o) != nil {
				return
			}
			queue <- o
		}
	}()
	for o := range queue {
		if o.Job == nil { // a signal for a program that has ended
			continue
		}
		r := result{Exit: exitLab}
		if err := w.do(*o.Job, queue, &r); err != nil {
			return err
		}
		if err := json.NewEncoder(port).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// addDevices loads the drivers and makes the devices, with the modules and programs of the
// host. It leaves nothing mounted, as a machine that has mounted the host's root cannot be saved.
func addDevices(s setup) error {
	r, err := enterRoot(rootMounts(s, ""))
	if err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	for _, m := range s.Late {
		if err := loadModule(filepath.Join("/lib/modules", s.Release, m)); err != nil {
			return err
		}
	}
	if err := setupNetwork(s.Host); err != nil {
		return err
	}
	return r.leave()
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}

// worker runs programs with the ports as their standard streams.
type worker struct {
	port     *os.File // for reports
	stdin    *os.File
	out, err outlet
	log      *os.File // the kernel's
	root     *root
	before   []string // see inventory
}

// newWorker enters the host's root.
func newWorker(j job, port *os.File) (*worker, error) {
	w := &worker{port: port}
	var err error
	if w.root, err = enterRoot(rootMounts(j.setup, j.Write)); err != nil {
		return nil, err
	}
	if j.Dilated {
		if err := measureClock(port); err != nil {
			return nil, err
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return nil, err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 65536}); err != nil {
		return nil, err
	}
	if err := addAdapters(j.Adapters, j.Host, j.UDP); err != nil {
		return nil, err
	}
	var files [3]*os.File
	for i, name := range ports[:3] {
		f, err := openPort(name)
		if err != nil {
			return nil, err
		}
		files[i] = f
	}
	w.stdin, w.out.w, w.err.w = files[0], files[1], files[2]
	if w.log, err = os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	if j.Shared {
		w.before = inventory()
	}
	return w, nil
}

// do runs a program, to which it passes signals.
func (w *worker) do(j job, orders <-chan order, r *result) error {
	out, errs := w.out.n.Load(), w.err.n.Load()
	if _, err := w.port.WriteString(started); err != nil {
		return err
	}
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Env, cmd.Dir = j.Env, j.Dir
	if j.Stdin {
		// A pipe, since a port has no end of file and cannot be shared by processes.
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go receive(in, w.stdin)
	}
	// As these are not files, os/exec connects them by pipes.
	cmd.Stdout, cmd.Stderr = &w.out, &w.err
	cmd.WaitDelay = 2 * time.Second // for children that hold the pipes open
	if err := cmd.Start(); err != nil {
		return err
	}
	var status syscall.WaitStatus
	exited := make(chan error)
	go func() {
		var err error
		status, err = reap(cmd.Process.Pid)
		exited <- err
	}()
	for running := true; running; {
		select {
		case err := <-exited:
			if err != nil {
				return err
			}
			running = false
		case o := <-orders:
			if o.Signal != 0 {
				unix.Kill(cmd.Process.Pid, unix.Signal(o.Signal))
			}
		}
	}
	if _, err := w.port.WriteString(ended); err != nil {
		return err
	}
	if j.Shared {
		w.clean(r)
	}
	cmd.Wait() // for the rest of its output; reap has waited for the process
	r.Exit = exitStatus(status)
	r.Out, r.Err = w.out.n.Load()-out, w.err.n.Load()-errs
	r.Kernel = append(r.Kernel, kernelWarnings(w.log)...)
	var err error
	r.Files, err = written(w.root.layer, j.Keep)
	return err
}

// clean ends the processes that a program has left, and finds what else is not as before.
func (w *worker) clean(r *result) {
	unix.Kill(-1, unix.SIGKILL) // all processes but this one
	var now []string
	for begun := time.Now(); ; {
		for {
			if pid, err := syscall.Wait4(-1, nil, unix.WNOHANG, nil); pid == 0 || err != nil && err != unix.EINTR {
				break
			}
		}
		now = inventory()
		if slices.Equal(now, w.before) || time.Since(begun) > 3*time.Second {
			break
		}
		time.Sleep(100 * time.Millisecond) // the kernel ends a process and a network namespace some time later
	}
	r.Lost, r.Left = without(w.before, now), without(now, w.before)
	for _, p := range processes() {
		r.Kernel = append(r.Kernel, p+" cannot be killed")
	}
	// A warning that the kernel reports once is reported to the next program as well.
	os.WriteFile("/sys/kernel/debug/clear_warn_once", []byte("1"), 0)
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// inventory returns the devices, links and processes of this machine, with what is of importance to
// tests. Addresses of links are left out, since the kernel adds them by itself.
func inventory() (all []string) {
	states, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/state")
	for _, s := range states {
		b, _ := os.ReadFile(s)
		all = append(all, fmt.Sprintf("device %s, port %s", strings.Split(s, "/")[4], strings.TrimSpace(string(b))))
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		up := "down"
		if l.Flags&net.FlagUp != 0 {
			up = "up"
		}
		all = append(all, fmt.Sprintf("link %s, %s, MTU %d", l.Name, up, l.MTU))
		addrs, _ := l.Addrs()
		for _, a := range addrs {
			if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLinkLocalUnicast() {
				all = append(all, fmt.Sprintf("address %s of %s", a, l.Name))
			}
		}
	}
	return append(all, processes()...)
}

// processes returns the other processes that are not threads of the kernel, and not zombies.
func processes() (all []string) {
	dirs, _ := filepath.Glob("/proc/[1-9]*")
	for _, d := range dirs {
		if b, err := os.ReadFile(d + "/cmdline"); err == nil && len(b) > 0 && d != "/proc/1" {
			all = append(all, "process "+strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")))
		}
	}
	return all
}

// reap waits for the program and, as process 1 must, for all processes whose
// parent ends in the meantime.
func reap(program int) (status syscall.WaitStatus, err error) {
	for {
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if pid == program || err != nil && err != syscall.EINTR {
			return status, err
		}
	}
}

// receive decodes the frames of feed.
func receive(w io.WriteCloser, r io.Reader) {
	defer w.Close()
	var head [2]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := int64(head[0])<<8 | int64(head[1])
		if n == 0 {
			return
		}
		if _, err := io.CopyN(w, r, n); err != nil {
			return
		}
	}
}

// openPort opens a port by name: a virtio-serial port, or a serial line.
func openPort(name string) (*os.File, error) {
	if os.Getenv("LAB_UML") != "" {
		return openLine(slices.Index(ports, name))
	}
	for range 100 {
		if port := findInSysfs("virtio-ports", "name", name); port != "" {
			return os.OpenFile("/dev/"+port, os.O_RDWR, 0)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio port %q", name)
}

// "general protection fault ip:" is not matched: it reports a program that crashed.
var reWarning = regexp.MustCompile(`WARNING: |BUG: |Oops|KASAN|general protection fault[:,]|refcount_t`)

// expectPrefix begins a line that a program writes to the kernel's log. A part of the warning
// that the program will cause follows.
const expectPrefix = "lab: expect warning: "

// warnings returns the lines of a kernel's log that report an unexpected bug, each with the
// trace that follows it.
func warnings(log iter.Seq[string]) (found []string) {
	var known []string
	follow := 0
	for line := range log {
		if _, text, ok := strings.Cut(line, expectPrefix); ok {
			known = append(known, strings.TrimSpace(text))
			continue
		}
		if reWarning.MatchString(line) && !slices.ContainsFunc(known, func(text string) bool { return strings.Contains(line, text) }) {
			follow = 30
		}
		if follow > 0 {
			follow--
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// kernelWarnings returns the warnings of the running kernel that have not been read yet.
func kernelWarnings(f *os.File) []string {
	raw, err := f.SyscallConn()
	if err != nil {
		return []string{err.Error()}
	}
	var log []string
	buf := make([]byte, 8192)
	raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EPIPE {
				continue // overwritten while reading
			}
			if err != nil {
				return
			}
			_, line, _ := strings.Cut(string(buf[:n]), ";")
			line, _, _ = strings.Cut(line, "\n")
			log = append(log, line)
		}
	})
	return warnings(slices.Values(log))
}

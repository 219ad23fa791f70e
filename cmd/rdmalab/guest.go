//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
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

// guestMain is the guest's /init. At the end it powers the machine off.
func guestMain() {
	r := result{Exit: exitLab}
	err := guest(&r)
	if err != nil {
		r.Error = err.Error()
		fmt.Fprintln(os.Stderr, "lab:", err) // stderr is the console
	}
	if port, err := openPort(portResult); err == nil {
		json.NewEncoder(port).Encode(r)
		port.Read(make([]byte, 1)) // until the host has all output, which powering off would discard
		port.Close()
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func guest(r *result) error {
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
	if s.Probe {
		r.Exit = 0
		return nil
	}
	if err := addDevices(s); err != nil {
		return err
	}
	j, err := receiveJob()
	if err != nil {
		return err
	}
	if _, err := enterRoot(j); err != nil {
		return err
	}
	if j.Dilated {
		if err := measureClock(); err != nil {
			return err
		}
	}
	return execute(j, r)
}

// addDevices loads the drivers and makes the devices, with the modules and programs of the
// host. It leaves nothing mounted, as a machine that has mounted the host's root cannot be saved.
func addDevices(s setup) error {
	leave, err := enterRoot(job{setup: s})
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
	return leave()
}

// receiveJob reports that this machine is ready, and returns its job.
func receiveJob() (j job, err error) {
	port, err := openPort(portResult)
	if err != nil {
		return j, err
	}
	defer port.Close()
	if _, err := port.WriteString(ready); err != nil {
		return j, err
	}
	if err := json.NewDecoder(port).Decode(&j); err != nil {
		return j, fmt.Errorf("receive the job: %w", err)
	}
	if j.Restored != nil {
		err = j.Restored.apply()
	}
	return j, err
}

type mount struct{ source, target, fstype, data string }

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	var flags uintptr
	if m.fstype == "bind" {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(m.source, m.target, m.fstype, flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
	}
	return nil
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

// enterRoot changes to the host's root, under a layer that holds writes. leave undoes that.
func enterRoot(j job) (leave func() error, err error) {
	const opts9P = "trans=virtio,version=9p2000.L,msize=512000"
	host, write := mount{"root", "/host", "9p", opts9P + ",ro,cache=loose"}, mount{"write", "/root" + j.Write, "9p", opts9P}
	if j.Modules == "" {
		host, write = mount{"root", "/host", "hostfs", "/"}, mount{"write", write.target, "hostfs", j.Write}
	}
	mounts := []mount{host, {"layer", "/layer", "tmpfs", "size=75%"}}
	lower := "/host"
	if j.Userland {
		lower = "/userland:/host" // a folder within /host would be refused
		mounts = append(mounts, mount{"userland", "/userland", "9p", opts9P + ",ro,cache=loose"})
	}
	mounts = append(mounts,
		mount{"root", "/root", "overlay", "lowerdir=" + lower + ",upperdir=/layer/upper,workdir=/layer/work"},
		mount{"devtmpfs", "/root/dev", "devtmpfs", ""},
		mount{"devpts", "/root/dev/pts", "devpts", ""},
		mount{"shm", "/root/dev/shm", "tmpfs", ""},
		mount{"proc", "/root/proc", "proc", ""},
		mount{"sysfs", "/root/sys", "sysfs", ""},
		mount{"debugfs", "/root/sys/kernel/debug", "debugfs", ""},
		mount{"run", "/root/run", "tmpfs", ""})
	if j.Modules != "" {
		mounts = append(mounts,
			mount{"tracefs", "/root/sys/kernel/tracing", "tracefs", ""},
			mount{"bpf", "/root/sys/fs/bpf", "bpf", ""},
			mount{"cgroup2", "/root/sys/fs/cgroup", "cgroup2", ""},
			mount{"/root" + j.Modules, "/root/lib/modules/" + j.Release, "bind", ""})
	}
	if j.Write != "" {
		mounts = append(mounts, write)
	}
	for _, m := range mounts {
		if m.fstype == "overlay" {
			for _, d := range []string{"/layer/upper", "/layer/work"} {
				if err := os.Mkdir(d, 0o755); err != nil {
					return nil, err
				}
			}
		}
		if err := m.do(); err != nil {
			return nil, err
		}
	}
	old, err := os.Open("/")
	if err != nil {
		return nil, err
	}
	return func() error {
		defer old.Close()
		if err := errors.Join(old.Chdir(), unix.Chroot(".")); err != nil {
			return err
		}
		for _, m := range slices.Backward(mounts) {
			if err := unix.Unmount(m.target, 0); err != nil {
				return fmt.Errorf("unmount %s: %w", m.target, err)
			}
		}
		return nil
	}, errors.Join(unix.Chroot("/root"), unix.Chdir("/"))
}

// execute runs the program with the ports as its standard streams.
func execute(j job, r *result) error {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 65536}); err != nil {
		return err
	}
	var files [3]*os.File
	for i, name := range ports[:3] {
		f, err := openPort(name)
		if err != nil {
			return err
		}
		files[i] = f
	}
	port, err := openPort(portResult)
	if err != nil {
		return err
	}
	port.WriteString(started)
	port.Close()
	// Stdin is a pipe, since a port has no end of file and cannot be shared by processes.
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Env, cmd.Dir = j.Env, j.Dir
	if j.Terminal {
		out := &counter{w: files[1]}
		status, err := startOnTerminal(cmd, files[0], out)
		r.Exit, r.Out, r.Kernel = exitStatus(status), out.n.Load(), kernelWarnings()
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go receive(in, files[0])
	// As these are not files, os/exec connects them by pipes.
	stdout, stderr := &counter{w: files[1]}, &counter{w: files[2]}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = 2 * time.Second // for children that hold the pipes open
	if err := cmd.Start(); err != nil {
		return err
	}
	status, err := reap(cmd.Process.Pid)
	if err != nil {
		return err
	}
	cmd.Wait() // for the rest of its output; reap has waited for the process
	r.Exit = exitStatus(status)
	r.Out, r.Err = stdout.n.Load(), stderr.n.Load()
	r.Kernel = kernelWarnings()
	return nil
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
		if t, ok := w.(terminal); ok && n == resizeFrame {
			var size [4]byte
			if _, err := io.ReadFull(r, size[:]); err != nil {
				return
			}
			t.resize(uint16(size[0])<<8|uint16(size[1]), uint16(size[2])<<8|uint16(size[3]))
			continue
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
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == name {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
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

// kernelWarnings returns the warnings of the running kernel.
func kernelWarnings() []string {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()
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

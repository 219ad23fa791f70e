//go:build linux

package guest

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
)

// worker runs programs with the ports as their standard streams.
type worker struct {
	port     *os.File // for reports
	stdin    *os.File
	out, err job.Outlet
	log      *os.File // the kernel's
	root     *root
	before   []string // the inventory of a shared machine before its first program
}

// newWorker prepares the machine for all its jobs, after it has booted or been restored: it enters the
// programs' root, checks a dilated clock, raises limits, waits for the adapters, which the host plugs in
// meanwhile, and opens the ports.
func newWorker(j job.Job, port *os.File) (*worker, error) {
	w := &worker{port: port}
	var err error
	if w.root, err = enterRoot(rootMounts(j.Setup, j.Write)); err != nil {
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
	if err := addAdapters(j.Adapters, j.Number, j.UDP); err != nil {
		return nil, err
	}
	var files [3]*os.File
	for i, name := range job.Ports[:3] {
		f, err := openPort(name)
		if err != nil {
			return nil, err
		}
		files[i] = f
	}
	w.stdin = files[0]
	w.out.To(files[1])
	w.err.To(files[2])
	if w.log, err = os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	if j.Shared {
		w.before = inventory()
	}
	return w, nil
}

// do runs a program, and passes signals to it.
func (w *worker) do(j job.Job, orders <-chan job.Order, r *job.Result) error {
	out, errs := w.out.N.Load(), w.err.N.Load()
	if _, err := w.port.WriteString(job.Started); err != nil {
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
		go job.ReceiveStdin(in, w.stdin)
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
			if o.Job != nil { // the program can write to the port: it has forged its end
				return errors.New("a job arrives while another program runs")
			}
			if o.Signal != 0 {
				unix.Kill(cmd.Process.Pid, unix.Signal(o.Signal))
			}
		}
	}
	if _, err := w.port.WriteString(job.Ended); err != nil {
		return err
	}
	if j.Shared {
		w.clean(r)
	}
	cmd.Wait() // for the rest of its output; reap has waited for the process
	r.Exit = job.ExitStatus(status)
	r.Out, r.Err = w.out.N.Load()-out, w.err.N.Load()-errs
	found, expected := kernelWarnings(w.log)
	r.Warnings = append(r.Warnings, found...)
	r.Left = append(r.Left, expected...) // its memory may be damaged
	var err error
	r.Files, err = w.root.written(j.Keep)
	return err
}

// clean ends the processes that a program has left, and finds other changes of the machine.
func (w *worker) clean(r *job.Result) {
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
		r.Warnings = append(r.Warnings, p.name+" cannot be killed: its threads are at "+strings.Join(p.stacks(), "; "))
	}
	// A warning that the kernel reports once is reported to the next program as well.
	os.WriteFile("/sys/kernel/debug/clear_warn_once", []byte("1"), 0)
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

// kernelWarnings returns the warnings of the running kernel that have not been read yet.
func kernelWarnings(f *os.File) (found, expected []string) {
	raw, err := f.SyscallConn()
	if err != nil {
		return []string{err.Error()}, nil
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
	return job.Warnings(slices.Values(log))
}

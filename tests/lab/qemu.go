package main

import (
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
	"syscall"
	"time"
)

type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// The ports between host and guest, by name.
const (
	portIn     = "stdin"
	portOut    = "stdout"
	portErr    = "stderr"
	portResult = "result"
)

var ports = []string{portIn, portOut, portErr, portResult}

// errBoot is a kernel that went down before anything ran on it.
var errBoot = errors.New("the kernel did not come up")

// bootAgain is boot that tries again if the kernel does not come up. QEMU's
// emulation of several processors now and then runs code that the kernel has
// just patched, as it does a lot of early on, and the kernel takes offence.
func bootAgain(ctx context.Context, k kernel, j job, opt options, std stdio) (code int, err error) {
	for range 4 {
		code, err = boot(ctx, k, j, opt, std)
		if !errors.Is(err, errBoot) {
			break
		}
		fmt.Fprintln(os.Stderr, "lab: the kernel did not come up; once more")
	}
	return code, err
}

// boot runs j on k and returns its exit status. When it returns, the machine
// is gone.
func boot(ctx context.Context, k kernel, j job, opt options, std stdio) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opt.timeout, fmt.Errorf("no end after %v (LAB_TIMEOUT)", opt.timeout))
	defer cancel()
	dir, err := os.MkdirTemp("", "lab-")
	if err != nil {
		return exitLab, err
	}
	defer os.RemoveAll(dir)
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(initramfs, k, j); err != nil {
		return exitLab, err
	}

	args := append(opt.qemuArgs(k, initramfs, j.Write), "-chardev", "file,id=console,path="+filepath.Join(dir, "console"))
	var listeners []net.Listener
	for _, name := range ports {
		sock := filepath.Join(dir, name)
		l, err := net.Listen("unix", sock)
		if err != nil {
			return exitLab, err
		}
		defer l.Close()
		listeners = append(listeners, l)
		args = append(args, "-chardev", "socket,id="+name+",path="+sock,
			"-device", "virtserialport,chardev="+name+",name="+name)
	}

	// The machine dies with this thread, so the thread must outlive it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var complaint bytes.Buffer
	qemu.Stderr = &complaint
	if err := qemu.Start(); err != nil {
		return exitLab, err
	}
	exited, gone := make(chan error, 1), make(chan struct{})
	go func() {
		exited <- qemu.Wait()
		close(gone)
		for _, l := range listeners {
			l.Close()
		}
	}()
	if opt.debug {
		go follow(ctx, filepath.Join(dir, "console"), os.Stderr)
	}

	report := reportBuffer{up: make(chan struct{})}
	done := make(chan struct{}, 3)
	copyTo := func(w io.Writer, l net.Listener) {
		if c, err := l.Accept(); err == nil {
			io.Copy(w, c)
			c.Close()
		}
		done <- struct{}{}
	}
	go func() {
		c, err := listeners[0].Accept()
		if err != nil {
			return
		}
		select {
		case <-report.up: // what nobody runs to read stays for another try
			feed(c, std.in)
		case <-gone:
		}
	}()
	go copyTo(std.out, listeners[1])
	go copyTo(std.err, listeners[2])
	go copyTo(&report, listeners[3])
	err = <-exited
	for range 3 {
		<-done
	}

	console, _ := os.ReadFile(filepath.Join(dir, "console"))
	var r result
	switch {
	case ctx.Err() != nil:
		return exitLab, fmt.Errorf("stopped: %w%s", context.Cause(ctx), tail(console))
	case len(report.text) == 0 && err != nil:
		return exitLab, fmt.Errorf("qemu: %w\n%s%s", err, complaint.Bytes(), tail(console))
	case len(report.text) == 0:
		return exitLab, fmt.Errorf("%w%s", errBoot, tail(console))
	}
	text, _ := bytes.CutPrefix(report.text, []byte(started))
	if len(text) == 0 {
		return exitLab, fmt.Errorf("the kernel went down before the program ended%s", tail(console))
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return exitLab, fmt.Errorf("result %q: %w", text, err)
	}
	if r.Error != "" {
		return exitLab, fmt.Errorf("in the guest: %s%s", r.Error, tail(console))
	}
	if len(r.Kernel) > 0 {
		err = fmt.Errorf("the kernel warned:\n%s", strings.Join(r.Kernel, "\n"))
		if r.Exit == 0 {
			r.Exit = exitLab
		}
		return r.Exit, err
	}
	return r.Exit, nil
}

// reportBuffer says when the guest has reported anything.
type reportBuffer struct {
	text []byte
	up   chan struct{}
}

func (r *reportBuffer) Write(b []byte) (int, error) {
	if len(r.text) == 0 {
		close(r.up)
	}
	r.text = append(r.text, b...)
	return len(b), nil
}

// feed sends stdin as frames of a length byte pair and data, an empty frame
// marking its end: a serial port has no end of file.
func feed(w io.WriteCloser, r io.Reader) {
	defer w.Close()
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

// tail is the end of the kernel's console, for an error message.
func tail(console []byte) string {
	const most = 4 << 10
	if len(console) > most {
		console = console[len(console)-most:]
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

// accelerator boots the kernel under KVM and remembers whether it got
// anywhere: a nested machine may have /dev/kvm and guests that hang.
func accelerator(ctx context.Context, k kernel, opt options) string {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg"
	} else {
		f.Close()
	}
	verdict := filepath.Join(filepath.Dir(filepath.Dir(k.image)), "kvm-"+hostID())
	if b, err := os.ReadFile(verdict); err == nil {
		return string(b)
	}
	fmt.Fprintln(os.Stderr, "lab: trying KVM, once")
	opt.accel, opt.timeout = "kvm", 10*time.Second
	accel := "tcg"
	code, err := boot(ctx, k, job{Probe: true, Release: k.release}, opt, stdio{strings.NewReader(""), io.Discard, io.Discard})
	if err == nil && code == 0 {
		accel = "kvm"
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		os.WriteFile(verdict, []byte(accel), 0o644)
	}
	fmt.Fprintf(os.Stderr, "lab: using %s\n", accel)
	return accel
}

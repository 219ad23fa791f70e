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
	exited := make(chan error, 1)
	go func() {
		exited <- qemu.Wait()
		for _, l := range listeners {
			l.Close()
		}
	}()
	if opt.debug {
		go follow(ctx, filepath.Join(dir, "console"), os.Stderr)
	}

	var report bytes.Buffer
	done := make(chan struct{}, 3)
	copyTo := func(w io.Writer, l net.Listener) {
		if c, err := l.Accept(); err == nil {
			io.Copy(w, c)
			c.Close()
		}
		done <- struct{}{}
	}
	go func() {
		if c, err := listeners[0].Accept(); err == nil {
			feed(c, std.in)
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
	case report.Len() == 0 && err != nil:
		return exitLab, fmt.Errorf("qemu: %w\n%s%s", err, complaint.Bytes(), tail(console))
	case report.Len() == 0:
		return exitLab, fmt.Errorf("the kernel went down before the program ended%s", tail(console))
	}
	if err := json.Unmarshal(report.Bytes(), &r); err != nil {
		return exitLab, fmt.Errorf("result %q: %w", report.Bytes(), err)
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

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goverbs/verbs/internal/sys"
)

type stdio struct {
	in       io.Reader
	out, err io.Writer
	signals  <-chan os.Signal // SIGQUIT, for the program
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

// errPatched reports a kernel that ran into a breakpoint of its own: see runner.run.
var errPatched = errors.New("the kernel ran code that it had just patched")

// errWarned reports a kernel that logged a bug of its own.
var errWarned = errors.New("the kernel warned")

// runAlone runs a program on a machine of its own, and returns its exit status.
func runAlone(ctx context.Context, k kernel, t task, opt options, std stdio) (int, error) {
	n := runner{k: k, opt: opt}
	defer n.stop()
	r, err := n.run(ctx, t, std)
	if err != nil {
		return exitLab, err
	}
	return t.finish(r)
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
	cacheFile := filepath.Join(k.root, "kvm-"+sys.KernelRelease())
	if b, err := os.ReadFile(cacheFile); err == nil {
		return string(b)
	}
	fmt.Fprintln(os.Stderr, "lab: trying KVM, once")
	opt.accel, opt.timeout = "kvm", 10*time.Second
	accel := "tcg"
	code, err := runAlone(ctx, k, task{job: job{setup: setup{Probe: true, Release: k.release}}}, opt, stdio{out: io.Discard, err: io.Discard})
	if err == nil && code == 0 {
		accel = "kvm"
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		os.WriteFile(cacheFile, []byte(accel), 0o644)
	}
	fmt.Fprintf(os.Stderr, "lab: using %s\n", accel)
	return accel
}

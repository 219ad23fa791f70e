//go:build linux

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// Runner runs programs on a machine, which it boots when it is needed.
type Runner struct {
	Kernel  image.Kernel
	Options Options
	machine *machine
}

// Stop ends the machine, if there is one.
func (n *Runner) Stop() {
	if n.machine != nil {
		n.machine.stop()
		n.machine = nil
	}
}

// Run runs a program, in up to four attempts. It repeats a run if the kernel did not come up, a dilated
// clock is off, or the machine has run another program and does not start this one: the program has not
// started then. If the kernel goes down later, Run repeats only a test on a single machine, which has no
// input and no peer, and only if the log shows ErrPatched: QEMU's emulation of several processors sometimes
// runs code that the kernel has just patched, mostly during boot.
func (n *Runner) Run(ctx context.Context, t Task, std Stdio) (r job.Result, err error) {
	for range 4 {
		r, err = n.once(ctx, t, std)
		switch {
		case errors.Is(err, errBoot):
			line, _, _ := strings.Cut(err.Error(), "\n") // without the kernel's log
			fmt.Fprintf(os.Stderr, "lab: %s; trying again\n", line)
		case errors.Is(err, errClock), errors.Is(err, errReuse):
			fmt.Fprintf(os.Stderr, "lab: %v; trying again\n", err)
		case errors.Is(err, ErrPatched) && t.Number == 0 && strings.HasSuffix(t.Args[0], ".test"):
			fmt.Fprintf(os.Stderr, "lab: %v; trying again\n", ErrPatched)
		default:
			return r, err
		}
	}
	return r, err
}

func (n *Runner) once(ctx context.Context, t Task, std Stdio) (r job.Result, err error) {
	if limit := n.Options.Timeout; limit > 0 { // of each attempt
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("timeout of %v exceeded (--timeout)", limit))
		defer cancel()
	}
	if n.machine == nil {
		if n.machine, err = startMachine(n.Kernel, t.Setup, t.Write, n.Options); err != nil {
			return r, err
		}
	}
	r, err = n.machine.run(ctx, t, std)
	if t.Number == peerMachine { // the guest may have ended without reading its log
		if w, _ := job.Warnings(strings.Lines(string(n.machine.console()))); len(w) > 0 {
			err = fmt.Errorf("%w:\n%s", errWarned, strings.Join(w, "\n"))
		}
	}
	if err != nil || len(r.Warnings) > 0 || len(r.Lost) > 0 || len(r.Left) > 0 {
		n.Stop()
	}
	return r, err
}

// RunAlone runs a program on a machine of its own, and returns its exit status.
func RunAlone(ctx context.Context, k image.Kernel, t Task, opt Options, std Stdio) (int, error) {
	n := Runner{Kernel: k, Options: opt}
	defer n.Stop()
	r, err := n.Run(ctx, t, std)
	if err != nil {
		return job.ExitLab, err
	}
	return t.Finish(r)
}

// Accelerator boots the kernel under KVM once and records whether it succeeds: in a
// nested machine /dev/kvm may exist although guests hang.
func Accelerator(ctx context.Context, k image.Kernel, opt Options) string {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg"
	} else {
		f.Close()
	}
	cacheFile := filepath.Join(k.Root, "kvm-"+sys.KernelRelease())
	if b, err := os.ReadFile(cacheFile); err == nil {
		return string(b)
	}
	fmt.Fprintln(os.Stderr, "lab: trying KVM, once")
	opt.Accel, opt.Timeout = "kvm", 10*time.Second
	accel := "tcg"
	code, err := RunAlone(ctx, k, Task{Job: job.Job{Setup: job.Setup{Probe: true, Release: k.Release}}}, opt, Stdio{Out: io.Discard, Err: io.Discard})
	if err == nil && code == 0 {
		accel = "kvm"
	}
	if ctx.Err() == nil && (accel == "kvm" || !overloaded(hostLoad())) { // otherwise the next run tries again
		os.WriteFile(cacheFile, []byte(accel), 0o644)
	}
	fmt.Fprintf(os.Stderr, "lab: using %s\n", accel)
	return accel
}

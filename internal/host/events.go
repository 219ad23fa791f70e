package host

import (
	"context"
	"os"
	"syscall"
	"time"
)

// EventFile is a file from which events are read. Only one goroutine of the process blocks a thread
// in Sleep. One goroutine at a time may call Sleep; any goroutine may call the other methods.
type EventFile interface {
	// Sleep waits until the file is readable, calls op with its descriptor, and returns op's
	// error; while op returns EAGAIN it waits again. It returns nil after Wake, the error
	// of ctx when ctx ends, [os.ErrDeadlineExceeded] at the time until, unless that is zero, and
	// [verbs.ErrClosed] after Close. If ctx has ended or the time has passed, op is called once.
	Sleep(ctx context.Context, until time.Time, op func(fd int) error) error
	// Wake ends the current Sleep, or the next one if there is none.
	Wake()
	// Try calls op with the file descriptor, which stays open during the call.
	Try(op func(fd int) error) error
	// FD returns the file descriptor, which is open until Close.
	FD() int
	// Relay is called, before the first Sleep, if the goroutine in Sleep passes events to other
	// goroutines. It then waits in the netpoller only, and leaves its thread to them.
	Relay()
	// Replace calls r, which makes the descriptor, one of the kernel's, refer to another file, see
	// [Replace].
	Replace(r func() error) error
	// Close closes the file. The current Sleep and later ones fail with [verbs.ErrClosed].
	Close() error
}

// NewEventFile returns an EventFile that owns fd. It closes fd if it fails.
func NewEventFile(fd int, name string) (EventFile, error) {
	if fd < base {
		return newKernelEvents(fd, name)
	}
	return newSoftEvents(fd)
}

// tryLate calls op once if ctx has ended or the time has passed, and reports whether it has.
func tryLate(f EventFile, ctx context.Context, until time.Time, op func(fd int) error) (late bool, err error) {
	end := ctx.Err()
	if end == nil && !until.IsZero() && !time.Now().Before(until) {
		end = os.ErrDeadlineExceeded
	}
	if end == nil {
		return false, nil
	}
	if err := f.Try(op); err != syscall.EAGAIN {
		return true, err
	}
	return true, end
}

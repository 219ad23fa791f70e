package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
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
	// Acquire returns the file descriptor, which stays open until Release. It fails with
	// [verbs.ErrClosed] after Close.
	Acquire() (fd int, err error)
	Release()
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
func NewEventFile(fd int) (EventFile, error) {
	if fd < base {
		return newKernelEvents(fd)
	}
	return newSoftEvents(fd)
}

// Ended returns why ctx has ended, for errors.Is of its Err and of its cause, or nil if it has not.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if !errors.Is(cause, err) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return cause
}

// tryLate calls op once if ctx has ended or the time has passed, and reports whether it has.
func tryLate(f EventFile, ctx context.Context, until time.Time, op func(fd int) error) (late bool, err error) {
	end := Ended(ctx)
	if end == nil && !until.IsZero() && !time.Now().Before(until) {
		end = os.ErrDeadlineExceeded
	}
	if end == nil {
		return false, nil
	}
	if err := try(f, op); err != syscall.EAGAIN {
		return true, err
	}
	return true, end
}

// try calls op with the file's descriptor.
func try(f EventFile, op func(fd int) error) error {
	fd, err := f.Acquire()
	if err != nil {
		return err
	}
	defer f.Release()
	return op(fd)
}

// openFD is a descriptor that is closed after the last call that uses it.
type openFD struct {
	fd    int
	users atomic.Int64 // calls, 1 until Close, and ended
}

// ended is set in openFD.users after Close.
const ended = 1 << 62

func (o *openFD) init(fd int) {
	o.fd = fd
	o.users.Store(1)
}

func (o *openFD) FD() int { return o.fd }

func (o *openFD) Acquire() (int, error) {
	for {
		n := o.users.Load()
		if n&ended != 0 {
			return -1, verbs.ErrClosed
		}
		if o.users.CompareAndSwap(n, n+1) {
			return o.fd, nil
		}
	}
}

func (o *openFD) Release() {
	if o.users.Add(-1) == ended {
		Close(o.fd)
	}
}

// end makes Acquire fail, and reports whether it is the first call. Release then ends what init has
// begun.
func (o *openFD) end() bool { return o.users.Or(ended)&ended == 0 }

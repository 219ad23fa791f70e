package sys

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EventFile is a file that events are read from, in the runtime's netpoller:
// a goroutine waiting on it holds no thread, and closing it wakes them all.
// Only one Do may be under way at a time.
type EventFile struct {
	f        *os.File
	raw      syscall.RawConn
	deadline atomic.Int64 // of ReadPlain, in Unix nanoseconds
	closing  atomic.Bool
	brief    func(fd uintptr) // waitBriefly of ReadPlain
}

// NewEventFile takes over fd.
func NewEventFile(fd int, name string) (*EventFile, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	e := &EventFile{f: f, raw: raw}
	expired := e.expired
	e.brief = func(fd uintptr) { waitBriefly(int(fd), expired) }
	return e, nil
}

// Do calls op until it returns something other than EAGAIN, waiting in
// between until the file is readable. It returns op's error, ctx's, or
// [ErrClosed]. A context that is already done still allows one attempt.
func (e *EventFile) Do(ctx context.Context, op func(fd int) error) error {
	// A deadline in the past is how a wait in the netpoller is interrupted.
	// Set by an earlier call's cancellation, it is cleared here; callers do
	// not overlap.
	if err := e.f.SetReadDeadline(time.Time{}); err != nil {
		return ErrClosed
	}
	if ctx.Done() != nil {
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			e.f.SetReadDeadline(time.Unix(1, 0))
			close(interrupted)
		})
		defer func() {
			if !stop() {
				<-interrupted // or it would hit the next caller
			}
		}()
	}
	var err error
	attempt := func(fd uintptr) bool {
		for {
			if err = op(int(fd)); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}
	// RawConn.Read fails at once if the deadline has passed, but events that
	// are there already are to be had even then.
	if ctx.Err() != nil {
		if cerr := e.raw.Control(func(fd uintptr) { attempt(fd) }); cerr != nil {
			return ErrClosed
		}
		if err == unix.EAGAIN {
			return ctx.Err()
		}
		return err
	}
	first := true
	wait := func(fd uintptr) bool {
		if first {
			first = false
			waitBriefly(int(fd), func() bool { return ctx.Err() != nil || e.closing.Load() })
		}
		return attempt(fd)
	}
	if rerr := e.raw.Read(wait); rerr != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ErrClosed
	}
	return err
}

// Read reads one or more whole events into b.
func (e *EventFile) Read(ctx context.Context, b []byte) (n int, err error) {
	err = e.Do(ctx, func(fd int) (err error) {
		n, err = unix.Read(fd, b)
		return err
	})
	return n, err
}

// ReadPlain reads one or more whole events into b. Unlike Read it allocates
// nothing, and it is SetDeadline that ends it, with [os.ErrDeadlineExceeded]. The
// two ways of reading do not mix.
func (e *EventFile) ReadPlain(b []byte) (n int, err error) {
	e.raw.Control(e.brief)
	n, err = e.f.Read(b)
	if errors.Is(err, os.ErrClosed) {
		err = ErrClosed
	}
	return n, err
}

// TryRead is ReadPlain that does not wait: it returns EAGAIN.
func (e *EventFile) TryRead(b []byte) (n int, err error) {
	err = e.Control(func(fd int) (err error) {
		n, err = unix.Read(fd, b)
		return err
	})
	return max(n, 0), err
}

// SetDeadline is when ReadPlain, under way or to come, ends; never if zero.
func (e *EventFile) SetDeadline(t time.Time) error {
	if t.IsZero() {
		e.deadline.Store(0)
	} else {
		e.deadline.Store(t.UnixNano())
	}
	return e.f.SetReadDeadline(t)
}

func (e *EventFile) expired() bool {
	d := e.deadline.Load()
	return d != 0 && time.Now().UnixNano() >= d || e.closing.Load()
}

// Control calls f with the file descriptor, which stays open meanwhile.
func (e *EventFile) Control(f func(fd int) error) (err error) {
	if cerr := e.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return ErrClosed
	}
	return err
}

// Close closes the file and wakes a waiting Do with [ErrClosed].
func (e *EventFile) Close() error {
	e.closing.Store(true)
	return e.f.Close()
}

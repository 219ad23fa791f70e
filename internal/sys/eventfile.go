package sys

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// EventFile is a file that events are read from. A goroutine that waits on it
// for longer than a moment holds no thread, and closing it wakes them all.
// Only one Do may be under way at a time.
type EventFile struct {
	f        *os.File // which the netpoller does not have
	raw      syscall.RawConn
	fd       int // open while raw's or watch.raw's functions run
	watch    *watch
	deadline atomic.Int64 // of ReadPlain, in Unix nanoseconds
	closing  atomic.Bool
	plain    plain

	// taking is held from a look at led to the end of the op that follows, so that
	// who has set led knows of no op under way.
	taking sync.Mutex
	led    bool
	doing  bool // Do waits, or is about to
	leader leader
}

// NewEventFile takes over fd.
func NewEventFile(fd int, name string) (*EventFile, error) {
	// The runtime leaves alone what is not yet set so when it gets it.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	e := &EventFile{f: os.NewFile(uintptr(fd), name), fd: fd}
	err := unix.SetNonblock(fd, true)
	if err != nil {
		err = os.NewSyscallError("fcntl", err)
	}
	if err == nil {
		e.raw, err = e.f.SyscallConn()
	}
	if err == nil {
		e.watch, err = newWatch(fd)
	}
	if err != nil {
		e.f.Close()
		return nil, err
	}
	e.preparePlain()
	e.prepareLeader()
	return e, nil
}

// Do calls op until it returns something other than EAGAIN, waiting in
// between until the file is readable. It returns op's error, ctx's, or
// [verbs.ErrClosed]. A context that is already done still allows one attempt.
func (e *EventFile) Do(ctx context.Context, op func(fd int) error) error {
	// A deadline in the past is how a wait in the netpoller is interrupted.
	// Set by an earlier call's cancellation, it is cleared here; callers do
	// not overlap.
	set := e.watch.set
	if err := set.SetReadDeadline(time.Time{}); err != nil {
		return verbs.ErrClosed
	}
	if ctx.Done() != nil {
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			set.SetReadDeadline(time.Unix(1, 0))
			close(interrupted)
		})
		defer func() {
			if !stop() {
				<-interrupted // or it would hit the next caller
			}
		}()
	}
	var err error
	attempt := func(uintptr) {
		for {
			if err = op(e.fd); err != unix.EINTR {
				return
			}
		}
	}
	// RawConn.Read fails at once if the deadline has passed, but events that
	// are there already are to be had even then.
	if ctx.Err() != nil {
		if e.raw.Control(attempt) != nil {
			return verbs.ErrClosed
		}
		if err == unix.EAGAIN {
			return ctx.Err()
		}
		return err
	}
	defer func() {
		e.taking.Lock()
		e.doing = false
		e.taking.Unlock()
	}()
	wait := func(uintptr) bool {
		e.taking.Lock()
		defer e.taking.Unlock()
		e.doing = true
		if e.led {
			return false // until the end of Lead is an event
		}
		if attempt(0); err == unix.EAGAIN {
			err = e.watch.turn(true)
			return err != nil
		}
		return true
	}
	if e.watch.raw.Read(wait) != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return verbs.ErrClosed
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
	return e.watch.set.SetReadDeadline(t)
}

func (e *EventFile) expired() bool {
	d := e.deadline.Load()
	return d != 0 && time.Now().UnixNano() >= d || e.closing.Load()
}

// FD returns the file descriptor, which is open until Close.
func (e *EventFile) FD() int { return e.fd }

// Control calls f with the file descriptor, which stays open meanwhile.
func (e *EventFile) Control(f func(fd int) error) (err error) {
	if cerr := e.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return verbs.ErrClosed
	}
	return err
}

// Write has the kernel run the command in b, without allocating.
func (e *EventFile) Write(b []byte) error {
	w := writes.Get().(*write)
	w.b = b
	cerr := e.raw.Control(w.run)
	err := w.err
	w.b, w.err = nil, nil
	writes.Put(w)
	if cerr != nil {
		return verbs.ErrClosed
	}
	return err
}

// write is a Write under way.
type write struct {
	b   []byte
	err error
	run func(fd uintptr)
}

var writes = sync.Pool{New: func() any {
	w := new(write)
	w.run = func(fd uintptr) { w.err = WriteCommand(int(fd), w.b) }
	return w
}}

// ErrRefused is returned by [WriteCommand] if the kernel takes no commands from the
// calling thread, because its credentials are not those with which the file was
// opened (ib_safe_file_access).
var ErrRefused = errors.New("the thread's credentials are not those that opened the file")

// WriteCommand has the kernel run the command in b.
func WriteCommand(fd int, b []byte) error {
	err := writeAll(fd, b)
	if err != unix.EACCES {
		return err
	}
	// It may be the command's own error. What is too short for a command is EINVAL
	// to a thread that may write.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if writeAll(fd, b[:1]) == unix.EACCES {
		return ErrRefused
	}
	return writeAll(fd, b)
}

func writeAll(fd int, b []byte) error {
	for {
		if _, err := unix.Write(fd, b); err != unix.EINTR {
			return err
		}
	}
}

// Replace calls f, which makes the descriptor refer to another file (dup3(2)).
func (e *EventFile) Replace(f func() error) error { return e.watch.replace(f) }

// Close closes the file and wakes a waiting Do with [verbs.ErrClosed].
func (e *EventFile) Close() error {
	e.closing.Store(true)
	e.watch.set.Close() // waits for those who wait to be on their way
	return e.f.Close()
}

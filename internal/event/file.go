package event

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// File is a file from which events are read. A goroutine in Sleep blocks no thread, except
// one goroutine in the process. One goroutine at a time may call Sleep; any goroutine may
// call the other methods.
type File struct {
	// Relays is set, before the first Sleep, if the goroutine in Sleep passes events to other
	// goroutines. It then waits in the netpoller only, and leaves its thread to them.
	Relays bool

	virtual *virtualFile // of a virtual file, which has nothing of the following; else nil

	f     *os.File // not in the runtime's netpoller
	raw   syscall.RawConn
	fd    int // open while raw or watch.raw calls a function
	watch *watch

	// For the current Sleep:
	op          func(fd int) error
	until       time.Time
	opDone      bool // op has returned err, which is not EAGAIN
	err         error
	controlFunc func(uintptr) // sleepInKernel and tryOrWatch, made once
	readFunc    func(uintptr) bool

	mu       sync.Mutex
	state    sleepState
	woken    bool // the current Sleep, or the next one, must end
	closed   bool
	deadline time.Time // that is set in the netpoller

	// The context whose end calls Wake. It stays registered until Sleep is called with
	// another one: most calls have the same.
	done <-chan struct{}
	stop func() bool
}

// sleepState is where a Sleep waits.
type sleepState int

const (
	notSleeping sleepState = iota
	inKernel
	inNetpoller
)

// NewFile returns a File that owns fd. It closes fd if it fails.
func NewFile(fd int, name string) (*File, error) {
	if virtual.Is(fd) {
		return newVirtualFile(fd)
	}
	// os.NewFile does not add a file in blocking mode to the netpoller.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := &File{f: os.NewFile(uintptr(fd), name), fd: fd}
	err := unix.SetNonblock(fd, true)
	if err != nil {
		err = os.NewSyscallError("fcntl", err)
	}
	if err == nil {
		f.raw, err = f.f.SyscallConn()
	}
	if err == nil {
		f.watch, err = newWatch(fd)
	}
	if err != nil {
		f.f.Close()
		return nil, err
	}
	f.controlFunc = func(uintptr) { f.sleepInKernel() }
	f.readFunc = func(uintptr) bool { return f.tryOrWatch() }
	return f, nil
}

// Sleep waits until the file is readable, calls op with its descriptor, and returns op's
// error; while op returns EAGAIN it waits again. It returns nil after [File.Wake], the error
// of ctx when ctx ends, [os.ErrDeadlineExceeded] at the time until, unless that is zero, and
// [verbs.ErrClosed] after Close. If ctx has ended or the time has passed, op is called once.
func (f *File) Sleep(ctx context.Context, until time.Time, op func(fd int) error) error {
	late := ctx.Err()
	if late == nil && !until.IsZero() && !time.Now().Before(until) {
		late = os.ErrDeadlineExceeded
	}
	if late != nil {
		if err := f.Try(op); err != syscall.EAGAIN {
			return err
		}
		return late
	}
	if f.virtual != nil {
		return f.virtual.sleep(ctx, until, op)
	}
	f.watchContext(ctx)
	f.op, f.until, f.opDone = op, until, false
	woken := f.sleep()
	f.op = nil
	switch {
	case f.opDone:
		return f.err
	case f.isClosed():
		return verbs.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case woken:
		return nil
	}
	return os.ErrDeadlineExceeded
}

// sleep returns when op has returned anything other than EAGAIN, at the time, and if woken.
func (f *File) sleep() (woken bool) {
	if !f.Relays && kernel.tryAcquire() {
		if f.enter(inKernel) {
			f.raw.Control(f.controlFunc)
			woken = f.leave()
		}
		kernel.release()
		if f.opDone || woken {
			return woken
		}
	}
	if f.enter(inNetpoller) {
		f.watch.raw.Read(f.readFunc)
	}
	return f.leave()
}

// enter records where the Sleep waits. It returns false if the Sleep must end.
func (f *File) enter(s sleepState) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.woken {
		return false
	}
	f.state = s
	if s == inNetpoller && !f.deadline.Equal(f.until) {
		f.deadline = f.until
		f.watch.set.SetReadDeadline(f.until)
	}
	return true
}

// leave undoes enter, and reports whether Wake has been called.
func (f *File) leave() (woken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	woken = f.woken
	f.state, f.woken = notSleeping, f.closed
	return woken
}

func (f *File) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// tryOrWatch calls op, and adds the file to the netpoller if op must be called again.
func (f *File) tryOrWatch() (over bool) {
	if f.try() {
		return true
	}
	if err := f.watch.setEnabled(true); err != nil {
		f.opDone, f.err = true, err
	}
	return f.opDone
}

// try calls op and reports whether it returned anything other than EAGAIN.
func (f *File) try() bool {
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		err = f.op(f.fd)
	}
	f.opDone, f.err = err != syscall.EAGAIN, err
	return f.opDone
}

// Wake ends the current Sleep, or the next one if there is none.
func (f *File) Wake() {
	if f.virtual != nil {
		put(f.virtual.wake)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wake()
}

func (f *File) wake() {
	if f.woken {
		return
	}
	f.woken = true
	switch f.state {
	case inKernel:
		kernel.wake()
	case inNetpoller:
		f.deadline = time.Unix(1, 0)
		f.watch.set.SetReadDeadline(f.deadline)
	}
}

// watchContext registers Wake to be called when ctx ends.
func (f *File) watchContext(ctx context.Context) {
	done := ctx.Done()
	if done == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if done == f.done || f.closed {
		return
	}
	f.unwatchContext()
	f.done, f.stop = done, context.AfterFunc(ctx, f.Wake)
}

func (f *File) unwatchContext() {
	if f.stop != nil {
		f.stop()
	}
	f.done, f.stop = nil, nil
}

// FD returns the file descriptor, which is open until Close.
func (f *File) FD() int { return f.fd }

// Try calls op with the file descriptor, which stays open during the call.
func (f *File) Try(op func(fd int) error) (err error) {
	if f.virtual != nil {
		return f.virtual.try(op)
	}
	if cerr := f.raw.Control(func(fd uintptr) { err = op(int(fd)) }); cerr != nil {
		return verbs.ErrClosed
	}
	return err
}

// Replace calls r, which makes the descriptor refer to another file (dup3(2)). The file is not
// virtual.
func (f *File) Replace(r func() error) error { return f.watch.replace(r) }

// Close closes the file. The current Sleep and later ones fail with
// [verbs.ErrClosed].
func (f *File) Close() error {
	if f.virtual != nil {
		return f.virtual.close()
	}
	f.mu.Lock()
	f.closed = true
	f.wake()
	f.unwatchContext()
	f.mu.Unlock()
	f.watch.set.Close() // waits for the functions that watch.raw calls
	return f.f.Close()
}

//go:build !nordma

package host

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// kernelEvents is an [EventFile] of a file of the kernel.
type kernelEvents struct {
	openFD // not in the runtime's netpoller
	relays bool
	watch  *watch

	// For the current Sleep:
	op       func(fd int) error
	until    time.Time
	opDone   bool // op has returned err, an error other than EAGAIN or nil
	err      error
	readFunc func(uintptr) bool // tryOrWatch, made once

	state  atomic.Int32 // a sleepState
	woken  atomic.Bool  // the current Sleep, or the next one, must end
	closed atomic.Bool

	mu       sync.Mutex
	deadline time.Time // that is set in the netpoller

	// The context whose end calls Wake. It stays registered until Sleep is called with
	// another one: most calls have the same.
	done <-chan struct{}
	stop func() bool
}

// sleepState is the place where a Sleep waits. A Sleep checks woken before it waits. So Wake, which
// sets woken, makes a system call only for a Sleep that waits, and none when op has an event for
// the very goroutine that called it.
type sleepState = int32

const (
	notWaiting sleepState = iota
	inKernel
	inNetpoller
)

func newKernelEvents(fd int) (EventFile, error) {
	f := new(kernelEvents)
	f.init(fd)
	err := os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
	if err == nil {
		f.watch, err = newWatch(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	f.readFunc = func(uintptr) bool { return f.tryOrWatch() }
	return f, nil
}

func (f *kernelEvents) Sleep(ctx context.Context, until time.Time, op func(fd int) error) error {
	if late, err := tryLate(f, ctx, until, op); late {
		return err
	}
	f.watchContext(ctx)
	f.op, f.until, f.opDone = op, until, false
	woken := f.sleep()
	f.op = nil
	switch {
	case f.opDone:
		return f.err
	case f.closed.Load():
		return verbs.ErrClosed
	case ctx.Err() != nil:
		return Ended(ctx)
	case woken:
		return nil
	}
	return os.ErrDeadlineExceeded
}

// sleep returns when op has returned anything other than EAGAIN, at f.until, and if woken.
func (f *kernelEvents) sleep() (woken bool) {
	if !f.relays && polling.tryAcquire() {
		if _, err := f.Acquire(); err == nil {
			f.sleepInKernel()
			f.Release()
		}
		polling.release()
		if f.opDone || f.woken.Load() {
			return f.leave()
		}
	}
	f.setDeadline()
	if f.await(inNetpoller) {
		f.watch.raw.Read(f.readFunc)
	}
	return f.leave()
}

// await records where the Sleep waits from now on. It returns false if the Sleep must end.
func (f *kernelEvents) await(s sleepState) bool {
	f.state.Store(s)
	return !f.woken.Load()
}

// leave ends the Sleep, and reports whether Wake has been called.
func (f *kernelEvents) leave() (woken bool) {
	f.state.Store(notWaiting)
	woken = f.woken.Swap(false)
	if f.closed.Load() {
		f.woken.Store(true)
	}
	return woken
}

// setDeadline sets the time in the netpoller.
func (f *kernelEvents) setDeadline() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.deadline.Equal(f.until) {
		f.deadline = f.until
		f.watch.set.SetReadDeadline(f.until)
	}
}

// tryOrWatch calls op, and adds the file to the netpoller if op must be called again.
func (f *kernelEvents) tryOrWatch() (over bool) {
	if f.try(inNetpoller) {
		return true
	}
	if err := f.watch.setEnabled(true); err != nil {
		f.opDone, f.err = true, err
	}
	return f.opDone
}

// try calls op, and reports whether the Sleep is over; otherwise it waits at s.
func (f *kernelEvents) try(s sleepState) (over bool) {
	f.state.Store(notWaiting)
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		err = f.op(f.fd)
	}
	f.opDone, f.err = err != syscall.EAGAIN, err
	return f.opDone || !f.await(s)
}

func (f *kernelEvents) Wake() {
	if f.woken.Swap(true) {
		return
	}
	switch f.state.Load() {
	case inKernel:
		polling.wake()
	case inNetpoller:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.woken.Load() { // or that Sleep has ended, and this may be another
			f.deadline = time.Unix(1, 0)
			f.watch.set.SetReadDeadline(f.deadline)
		}
	}
}

// watchContext registers Wake to be called when ctx ends.
func (f *kernelEvents) watchContext(ctx context.Context) {
	done := ctx.Done()
	if done == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if done == f.done || f.closed.Load() {
		return
	}
	f.unwatchContext()
	f.done, f.stop = done, context.AfterFunc(ctx, f.Wake)
}

func (f *kernelEvents) unwatchContext() {
	if f.stop != nil {
		f.stop()
	}
	f.done, f.stop = nil, nil
}

func (f *kernelEvents) Relay() { f.relays = true }

func (f *kernelEvents) Replace(r func() error) error { return f.watch.replace(r) }

func (f *kernelEvents) Close() error {
	if !f.end() {
		return os.ErrClosed
	}
	f.mu.Lock()
	f.closed.Store(true)
	f.unwatchContext()
	f.mu.Unlock()
	f.Wake()
	f.watch.set.Close() // waits for the functions that watch.raw calls
	f.Release()
	return nil
}

//go:build !nordma

package host

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// watch adds a file to the runtime's netpoller only while a Sleep waits there: the netpoller
// always has an epoll set, and the file is added to the set and removed from it. If the file
// were always in the netpoller, every event would also wake a thread of the scheduler while
// another thread waits for the event in the kernel, and the two would delay each other.
type watch struct {
	set *os.File // the epoll set
	raw syscall.RawConn
	fd  int32 // of the watched file

	mu      sync.Mutex
	enabled atomic.Bool // changed with mu held
	err     error

	enable, disable func(set uintptr) // made once
}

func newWatch(fd int) (*watch, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(set, true); err != nil { // so that os.NewFile adds it to the netpoller
		unix.Close(set)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watch{set: os.NewFile(uintptr(set), "epoll set"), fd: int32(fd)}
	if err = netpolled(w.set); err == nil {
		w.raw, err = w.set.SyscallConn()
	}
	if err != nil {
		w.set.Close()
		return nil, err
	}
	// An empty event mask would not disable the file, so it is removed: uverbs wakes
	// pollers without naming the event, and that matches every mask.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: w.fd}
	w.enable = func(set uintptr) { w.err = unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, fd, &event) }
	w.disable = func(set uintptr) { w.err = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, fd, nil) }
	return w, nil
}

// netpolled fails if the runtime's netpoller has not taken a file. os.NewFile does not say so, and
// waiting for the file would end at once.
func netpolled(f *os.File) error {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("the Go runtime's netpoller does not take the %s: fs.epoll.max_user_watches may be reached: %w", f.Name(), err)
	}
	return nil
}

// setEnabled adds the file to the set or removes it. Adding fails if there is no memory.
func (w *watch) setEnabled(on bool) error {
	if w.enabled.Load() == on { // most often; one Sleep at a time changes it
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.enabled.Load() == on {
		return nil
	}
	return w.change(on)
}

// change is setEnabled if that has an effect. The caller holds mu.
func (w *watch) change(on bool) error {
	f := w.disable
	if on {
		f = w.enable
	}
	if err := w.raw.Control(f); err != nil {
		return verbs.ErrClosed
	}
	if w.err == nil {
		w.enabled.Store(on)
	}
	return w.err
}

// replace calls f, which makes the descriptor refer to another file (dup3(2)), and
// adds that file to the set if the former file was in it.
func (w *watch) replace(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.enabled.Load() {
		return f()
	}
	if err := w.raw.Control(w.disable); err != nil { // enabled stays: a Sleep that disables it meanwhile must wait
		return verbs.ErrClosed
	}
	if w.err != nil {
		return w.err
	}
	err := f()
	enabled := w.change(true)
	if enabled != nil {
		w.enabled.Store(false)
	}
	return cmp.Or(err, enabled)
}

package event

import (
	"cmp"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// watch has a file in the runtime's netpoller only while a Sleep waits there: the netpoller
// has an epoll set, and the file is in the set or not. A file that is in the netpoller all
// the time wakes a thread of the scheduler with every event, also when another thread waits
// for the event in the kernel, and the two get in each other's way.
type watch struct {
	set *os.File // the epoll set
	raw syscall.RawConn
	fd  int32 // of the file that is in it

	mu  sync.Mutex
	on  bool
	err error

	enable, disable func(set uintptr) // made once
}

func newWatch(fd int) (*watch, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(set, true); err != nil { // or the runtime would not take it
		unix.Close(set)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watch{set: os.NewFile(uintptr(set), "epoll set"), fd: int32(fd)}
	if w.raw, err = w.set.SyscallConn(); err != nil {
		w.set.Close()
		return nil, err
	}
	// Events of no kind would not do: uverbs wakes without saying of which kind
	// its event is.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: w.fd}
	w.enable = func(set uintptr) { w.err = unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, fd, &event) }
	w.disable = func(set uintptr) { w.err = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, fd, nil) }
	return w, nil
}

// turn puts the file into the set or takes it out. Putting it in fails if there is no memory.
func (w *watch) turn(on bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.turnLocked(on)
}

func (w *watch) turnLocked(on bool) error {
	if w.on == on {
		return nil
	}
	change := w.disable
	if on {
		change = w.enable
	}
	if err := w.raw.Control(change); err != nil {
		return verbs.ErrClosed
	}
	if w.err == nil {
		w.on = on
	}
	return w.err
}

// replace calls f, which makes the descriptor refer to another file (dup3(2)), and
// registers that file with the netpoller if the former one was.
func (w *watch) replace(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	on := w.on
	if err := w.turnLocked(false); err != nil {
		return err
	}
	err := f()
	return cmp.Or(err, w.turnLocked(on))
}

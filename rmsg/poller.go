package rmsg

import (
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller is the one file that is readable when a loop has something to do: an
// epoll file that has the devices' completion channels in it, and an eventfd for
// the events of goroutines.
type poller struct {
	file  *os.File // in the runtime's netpoller, so that Run costs no thread
	raw   syscall.RawConn
	fd    int
	event int
	told  atomic.Bool // the eventfd has been written to since it was read

	// Of wait, which one goroutine calls at a time:
	look  func(fd uintptr) bool
	room  [8]unix.EpollEvent
	found []unix.EpollEvent // of room
	looks int
}

// tellIndex is the index of the eventfd in epoll events; devices have theirs, from 1.
const tellIndex = -1

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for os.NewFile to see
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{fd: fd, file: os.NewFile(uintptr(fd), "msg loop")}
	p.look = func(fd uintptr) bool {
		p.found = poll(int(fd), p.room[:])
		p.looks++
		return len(p.found) > 0
	}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, err
	}
	if p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		p.file.Close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := p.add(p.event, tellIndex); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) add(fd int, index int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: index}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

func (p *poller) remove(fd int) { unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// tell makes the file readable.
func (p *poller) tell() {
	if !p.told.Swap(true) {
		unix.Write(p.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// take undoes tell: the next tell makes the file readable again. The order matters, or
// a tell in between would be lost.
func (p *poller) take() {
	if p.told.Load() {
		var b [8]byte
		unix.Read(p.event, b[:])
		p.told.Store(false)
	}
}

// wait waits until something is readable, which it returns, and whether it slept.
func (p *poller) wait() (ready []unix.EpollEvent, slept bool, err error) {
	p.looks = 0
	err = p.raw.Read(p.look)
	return p.found, p.looks > 1, err
}

// poll returns what is readable in an epoll file.
func poll(fd int, room []unix.EpollEvent) []unix.EpollEvent {
	n, err := unix.EpollWait(fd, room, 0)
	if err != nil {
		n = 0 // EINTR: it comes again
	}
	return room[:n]
}

func (p *poller) close() {
	unix.Close(p.event)
	p.file.Close()
}

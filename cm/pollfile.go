package cm

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pollFile is the file of [Loop.FD]: an epoll set of the channel's file and of an eventfd
// that is readable while events wait in the loop.
type pollFile struct {
	set, queued int
	full        bool // queued is readable

	mu     sync.Mutex // held by replace and close
	closed bool
}

func newPollFile(channel int) (*pollFile, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	queued, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(set)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &pollFile{set: set, queued: queued}
	if err = p.add(queued); err == nil {
		err = p.add(channel)
	}
	if err != nil {
		p.close()
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	return p, nil
}

func (p *pollFile) add(fd int) error {
	return unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// replace calls f, which makes the channel's descriptor refer to another file.
func (p *pollFile) replace(channel int, f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return f()
	}
	unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, channel, nil)
	err := f()
	if aerr := p.add(channel); err == nil && aerr != nil {
		err = os.NewSyscallError("epoll_ctl", aerr)
	}
	return err
}

// mark makes the set readable while events wait. Calls do not overlap.
func (p *pollFile) mark(waiting bool) {
	if p.full == waiting {
		return
	}
	p.full = waiting
	b := [8]byte{1}
	if waiting {
		unix.Write(p.queued, b[:])
	} else {
		unix.Read(p.queued, b[:])
	}
}

func (p *pollFile) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.set)
	unix.Close(p.queued)
}

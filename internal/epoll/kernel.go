package epoll

import (
	"os"
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
)

// kernelSet is an epoll file, with an eventfd in it for Wake. Its users hold the set's mu.
type kernelSet struct {
	fd     int
	wakeFD int      // the eventfd
	file   *os.File // in the runtime's netpoller, so that Wait blocks no thread; nil before Wait
	raw    syscall.RawConn
}

// makeKernelSet makes the kernelSet, if there is none, and moves the set's virtual files to it.
// It fails if the set is closed. The caller holds mu.
func (s *Set) makeKernelSet() error {
	if s.closed {
		return os.ErrClosed
	}
	if s.kernel != nil {
		return nil
	}
	k, err := newKernelSet()
	if err != nil {
		return err
	}
	signal(k.wakeFD, s.woken)
	for _, f := range s.virtual {
		if err := f.moveTo(k); err != nil {
			for _, f := range s.virtual {
				f.leave()
			}
			k.close()
			return err
		}
	}
	s.kernel = k
	s.change()
	return nil
}

func newKernelSet() (*kernelSet, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wakeFD, err := newEventFD()
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	k := &kernelSet{fd: fd, wakeFD: wakeFD}
	if err := k.add(wakeFD, WakeID); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func newEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return fd, os.NewSyscallError("eventfd", err)
}

// signal makes an eventfd readable, or not readable.
func signal(fd int, readable bool) {
	b := [8]byte{1}
	if readable {
		unix.Write(fd, b[:])
	} else {
		unix.Read(fd, b[:])
	}
}

func (k *kernelSet) add(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(k.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

func (k *kernelSet) remove(fd int) { unix.EpollCtl(k.fd, unix.EPOLL_CTL_DEL, fd, nil) }

func (k *kernelSet) poll(buf []unix.EpollEvent) []unix.EpollEvent {
	n, err := unix.EpollWait(k.fd, buf, 0)
	if err != nil {
		n = 0 // EINTR: the next call returns the events
	}
	return buf[:n]
}

func (k *kernelSet) addToNetpoller() (err error) {
	if k.file == nil {
		unix.SetNonblock(k.fd, true) // so that os.NewFile adds it to the netpoller
		k.file = os.NewFile(uintptr(k.fd), "epoll")
		k.raw, err = k.file.SyscallConn()
	}
	return err
}

func (k *kernelSet) close() {
	unix.Close(k.wakeFD)
	if k.file != nil {
		k.file.Close()
	} else {
		unix.Close(k.fd)
	}
}

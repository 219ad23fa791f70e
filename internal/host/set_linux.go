//go:build !nordma

package host

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernelSet is an epoll file. Its users hold the set's mu.
type kernelSet struct {
	fd     int
	wakeFD int      // an eventfd in it, which is readable while the set is woken or a file of this process is readable
	file   *os.File // in the runtime's netpoller, so that Wait blocks no thread; nil before Wait
	raw    syscall.RawConn
}

func newKernelSet() (*kernelSet, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	k := &kernelSet{fd: fd}
	if k.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := k.add(k.wakeFD, WakeID); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// signal makes wakeFD readable, with a new edge if it is already, or not readable.
func (k *kernelSet) signal(readable bool) {
	b := [8]byte{1}
	if readable {
		unix.Write(k.wakeFD, b[:])
	} else {
		unix.Read(k.wakeFD, b[:])
	}
}

func (k *kernelSet) add(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(k.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

func (k *kernelSet) remove(fd int) { unix.EpollCtl(k.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// poll returns the events of the kernel's files.
func (k *kernelSet) poll(buf []Event) []Event {
	if len(buf) == 0 {
		return nil
	}
	var events [9]unix.EpollEvent // with room for wakeFD
	got, err := unix.EpollWait(k.fd, events[:min(len(buf)+1, len(events))], 0)
	if err != nil {
		return nil // EINTR: the next call returns the events
	}
	n := 0
	for _, e := range events[:got] {
		if e.Fd != WakeID && n < len(buf) {
			buf[n] = Event{e.Fd, e.Events&^unix.EPOLLIN != 0}
			n++
		}
	}
	return buf[:n]
}

// prepare adds the file to the runtime's netpoller.
func (k *kernelSet) prepare() (err error) {
	if k.file == nil {
		unix.SetNonblock(k.fd, true) // so that os.NewFile adds it to the netpoller
		k.file = os.NewFile(uintptr(k.fd), "epoll")
		k.raw, err = k.file.SyscallConn()
	}
	return err
}

// wait calls f, again when the file is readable, until f returns true.
func (k *kernelSet) wait(f func(uintptr) bool) error { return k.raw.Read(f) }

func (k *kernelSet) close() {
	unix.Close(k.wakeFD)
	if k.file != nil {
		k.file.Close()
	} else {
		unix.Close(k.fd)
	}
}

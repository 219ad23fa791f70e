// Package epoll combines several files into one that is readable while any of them is, for
// event loops inside other event loops.
package epoll

import (
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
)

// Set is an epoll file, with an eventfd in it for Wake. Any goroutine may call its methods,
// also after Close; one at a time may call Wait.
type Set struct {
	wakeFD int // the eventfd

	mu    sync.Mutex
	file  *os.File // in the runtime's netpoller, so that Wait blocks no thread; nil before Wait
	fd    int      // -1 after Close
	woken bool     // wakeFD is readable

	// For Wait:
	raw      syscall.RawConn
	pollFunc func(fd uintptr) bool
	buf      [8]unix.EpollEvent
	ready    []unix.EpollEvent // a prefix of buf
	polls    int
}

// WakeID is the ID in the epoll event of Wake.
const WakeID = -1

// New returns a set without files.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wakeFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	s := &Set{fd: fd, wakeFD: wakeFD}
	s.pollFunc = func(fd uintptr) bool {
		s.ready = poll(int(fd), s.buf[:])
		s.polls++
		return len(s.ready) > 0
	}
	if err := s.Add(wakeFD, WakeID); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// FD returns the descriptor of the set, which is readable while one of its files is, and
// from Wake to Clear. After Close it is -1.
func (s *Set) FD() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd
}

// Add adds a file. Its events have the ID id.
func (s *Set) Add(fd int, id int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// Remove removes a file.
func (s *Set) Remove(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unix.EpollCtl(s.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// Wake makes the set readable until Clear.
func (s *Set) Wake() { s.set(true) }

// Clear undoes Wake.
func (s *Set) Clear() { s.set(false) }

func (s *Set) set(woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 || s.woken == woken {
		return
	}
	s.woken = woken
	b := [8]byte{1}
	if woken {
		unix.Write(s.wakeFD, b[:])
	} else {
		unix.Read(s.wakeFD, b[:])
	}
}

// Poll returns the events of files that are readable now, as many as fit into buf.
func (s *Set) Poll(buf []unix.EpollEvent) []unix.EpollEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return poll(s.fd, buf)
}

func poll(fd int, buf []unix.EpollEvent) []unix.EpollEvent {
	n, err := unix.EpollWait(fd, buf, 0)
	if err != nil {
		n = 0 // EINTR: the next call returns the events
	}
	return buf[:n]
}

// Wait waits until a file is readable, and returns the events and whether it slept. The
// next Wait reuses the memory of ready. It returns an error when the set is closed.
func (s *Set) Wait() (ready []unix.EpollEvent, slept bool, err error) {
	if err := s.prepare(); err != nil {
		return nil, false, err
	}
	s.polls = 0
	err = s.raw.Read(s.pollFunc)
	return s.ready, s.polls > 1, err
}

// prepare adds the set to the netpoller, which every event of the set's files wakes from
// then on.
func (s *Set) prepare() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	if s.file == nil {
		unix.SetNonblock(s.fd, true) // so that os.NewFile adds it to the netpoller
		s.file = os.NewFile(uintptr(s.fd), "epoll")
		s.raw, err = s.file.SyscallConn()
	}
	return err
}

// Close closes the set and ends Wait.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	unix.Close(s.wakeFD)
	if s.file != nil {
		s.file.Close()
	} else {
		unix.Close(s.fd)
	}
	s.fd = -1
}

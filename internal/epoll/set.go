// Package epoll combines several files into one that is readable while any of them is, for
// event loops inside other event loops.
package epoll

import (
	"os"
	"sync"

	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// Set is a set of files, with a wake-up. It is an epoll file if files of the kernel have been
// added or FD has been called; otherwise it waits for a Go channel. Any goroutine may call its
// methods, also after Close; one at a time may call Wait.
type Set struct {
	mu      sync.Mutex // calls of virtual files take it
	closed  bool
	woken   bool
	kernel  *kernelSet           // or nil
	virtual map[int]*virtualFile // by descriptor
	changed chan struct{}        // has a token when Wait must look again; not if there is a kernelSet

	// For Wait:
	buf   [8]unix.EpollEvent
	ready []unix.EpollEvent // a prefix of buf
	polls int
}

// WakeID is the ID in the epoll event of Wake.
const WakeID = -1

// New returns a set without files.
func New() *Set {
	return &Set{virtual: map[int]*virtualFile{}, changed: make(chan struct{}, 1)}
}

// FD returns the descriptor of the set, which is readable while one of its files is, and
// from Wake to Clear. After Close, and on systems without epoll, it is -1.
func (s *Set) FD() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.makeKernelSet() != nil {
		return -1
	}
	return s.kernel.fd
}

// Add adds a file. Its events have the ID id.
func (s *Set) Add(fd int, id int32) error {
	if virtual.Is(fd) {
		return s.addVirtual(fd, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeKernelSet(); err != nil {
		return err
	}
	return s.kernel.add(fd, id)
}

// Remove removes a file.
func (s *Set) Remove(fd int) {
	if virtual.Is(fd) {
		s.removeVirtual(fd)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel != nil {
		s.kernel.remove(fd)
	}
}

// Wake makes the set readable until Clear.
func (s *Set) Wake() { s.set(true) }

// Clear undoes Wake.
func (s *Set) Clear() { s.set(false) }

func (s *Set) set(woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.woken == woken {
		return
	}
	s.woken = woken
	if s.kernel != nil {
		signal(s.kernel.wakeFD, woken)
	} else {
		s.change()
	}
}

// change makes Wait look again. The caller holds mu.
func (s *Set) change() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Poll returns the events of files that are readable now, as many as fit into buf.
func (s *Set) Poll(buf []unix.EpollEvent) []unix.EpollEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.kernel != nil:
		return s.addErrors(s.kernel.poll(buf))
	}
	return s.collect(buf)
}

// Wait waits until a file is readable, and returns the events and whether it slept. The
// next Wait reuses the memory of ready. It returns an error when the set is closed.
func (s *Set) Wait() (ready []unix.EpollEvent, slept bool, err error) {
	for {
		k, err := s.prepare()
		if err != nil {
			return nil, slept, err
		}
		if k != nil {
			s.polls = 0
			err = k.raw.Read(s.pollKernel)
			return s.ready, slept || s.polls > 1, err
		}
		if s.ready = s.Poll(s.buf[:]); len(s.ready) > 0 {
			return s.ready, slept, nil
		}
		<-s.changed
		slept = true
	}
}

// prepare returns the kernelSet, if there is one. It adds it to the netpoller, which every event
// of the set's files wakes from then on.
func (s *Set) prepare() (*kernelSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, os.ErrClosed
	case s.kernel == nil:
		return nil, nil
	}
	return s.kernel, s.kernel.addToNetpoller()
}

// pollKernel polls the kernelSet for Wait, until there are events.
func (s *Set) pollKernel(uintptr) bool {
	s.polls++
	s.ready = s.Poll(s.buf[:])
	return len(s.ready) > 0
}

// Close closes the set and ends Wait.
func (s *Set) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.change()
	k, files := s.kernel, s.virtual
	s.kernel, s.virtual = nil, nil
	s.mu.Unlock()
	if k != nil {
		k.close() // waits for pollKernel, which takes mu
	}
	for _, f := range files {
		f.end()
	}
}

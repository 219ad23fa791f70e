package host

import (
	"os"
	"sync"
	"syscall"
)

// Set combines several files, and a wake-up, into one that is readable while any of them is, for
// event loops inside other event loops. It is an epoll file if files of the kernel have been added
// or FD has been called; otherwise it waits for a Go channel. Any goroutine may call its methods,
// also after Close; one at a time may call Wait.
type Set struct {
	mu      sync.Mutex // calls of files of this process take it
	closed  bool
	woken   bool
	kernel  *kernelSet      // or nil
	soft    map[int]*member // by descriptor
	changed chan struct{}   // has a token when Wait must look again; not if there is a kernelSet

	// For Wait:
	buf   [8]Event
	ready []Event // a prefix of buf
	polls int
}

// Event is the state of a file that is readable.
type Event struct {
	ID     int32
	Failed bool
}

// WakeID is the ID in the event of Wake.
const WakeID = -1

// NewSet returns a set without files.
func NewSet() *Set {
	return &Set{soft: map[int]*member{}, changed: make(chan struct{}, 1)}
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

// makeKernelSet makes the kernelSet, if there is none. It fails if the set is closed. The caller
// holds mu.
func (s *Set) makeKernelSet() (err error) {
	switch {
	case s.closed:
		return os.ErrClosed
	case s.kernel != nil:
		return nil
	}
	if s.kernel, err = newKernelSet(); err != nil {
		return err
	}
	s.kernel.signal(s.readable())
	s.change()
	return nil
}

// Add adds a file. Its events have the ID id.
func (s *Set) Add(fd int, id int32) error {
	if fd >= base {
		return s.addSoft(fd, id)
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
	s.mu.Lock()
	m := s.soft[fd]
	if m == nil && s.kernel != nil && fd < base {
		s.kernel.remove(fd)
	}
	delete(s.soft, fd)
	s.mu.Unlock()
	if m != nil {
		m.stop()
		m.changed(Idle)
	}
}

// Wake makes the set readable until Clear.
func (s *Set) Wake() { s.set(true) }

// Clear undoes Wake.
func (s *Set) Clear() { s.set(false) }

func (s *Set) set(woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.woken != woken {
		s.woken = woken
		s.update(woken)
	}
}

// member is a file of this process in a set.
type member struct {
	set   *Set
	id    int32
	state State  // guarded by the set's mu
	stop  func() // ends the calls of changed
}

func (s *Set) addSoft(fd int, id int32) error {
	file := Get(fd)
	if file == nil {
		return syscall.EBADF
	}
	m := &member{set: s, id: id}
	m.stop = file.Watch(m.changed) // without mu, which changed takes, and before Close and Remove know of it
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		m.stop()
		return os.ErrClosed
	}
	s.soft[fd] = m
	s.update(m.state != Idle)
	s.mu.Unlock()
	return nil
}

// changed is called by the file.
func (m *member) changed(state State) {
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	m.state = state
	m.set.update(state != Idle)
}

// update passes a change of woken, or of a file of this process, to the waiting goroutines. news is
// set if something has become readable, which the epoll file then reports again, as some wait for
// edges. The caller holds mu.
func (s *Set) update(news bool) {
	switch {
	case s.kernel == nil && news:
		s.change()
	case s.kernel != nil && (news || !s.readable()):
		s.kernel.signal(news)
	}
}

// readable reports whether the set is readable for a reason that the kernel does not see. The
// caller holds mu.
func (s *Set) readable() bool {
	for _, m := range s.soft {
		if m.state != Idle {
			return true
		}
	}
	return s.woken
}

// change makes Wait look again. The caller holds mu.
func (s *Set) change() { put(s.changed) }

// Poll returns the events of files that are readable now, as many as fit into buf.
func (s *Set) Poll(buf []Event) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	n := 0
	add := func(e Event) {
		if n < len(buf) {
			buf[n] = e
			n++
		}
	}
	if s.woken {
		add(Event{ID: WakeID})
	}
	for _, m := range s.soft {
		if m.state != Idle {
			add(Event{m.id, m.state == Failed})
		}
	}
	if s.kernel != nil {
		n += len(s.kernel.poll(buf[n:]))
	}
	return buf[:n]
}

// Wait waits until a file is readable, and returns the events and whether it slept. The
// next Wait reuses the memory of ready. It returns an error when the set is closed.
func (s *Set) Wait() (ready []Event, slept bool, err error) {
	for {
		k, err := s.prepare()
		if err != nil {
			return nil, slept, err
		}
		if k != nil {
			s.polls = 0
			err = k.wait(s.pollKernel)
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
	return s.kernel, s.kernel.prepare()
}

// pollKernel polls for Wait, until there are events.
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
	k, files := s.kernel, s.soft
	s.kernel, s.soft = nil, nil
	s.mu.Unlock()
	if k != nil {
		k.close() // waits for pollKernel, which takes mu
	}
	for _, m := range files {
		m.stop()
	}
}

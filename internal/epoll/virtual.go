package epoll

import (
	"os"
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// virtualFile is a file of package virtual in a set. Its fields are guarded by the set's mu.
type virtualFile struct {
	set   *Set
	id    int32
	state virtual.State
	stop  func() // ends the calls of change

	// In a kernelSet, an eventfd is readable while the file is; otherwise it is -1.
	eventFD  int
	signaled bool
}

func (s *Set) addVirtual(fd int, id int32) error {
	file := virtual.Get(fd)
	if file == nil {
		return syscall.EBADF
	}
	f := &virtualFile{set: s, id: id, eventFD: -1}
	if err := s.insert(fd, f); err != nil {
		return err
	}
	f.stop = file.Watch(f.change) // without mu, which change takes
	return nil
}

func (s *Set) insert(fd int, f *virtualFile) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	if s.kernel != nil {
		if err := f.moveTo(s.kernel); err != nil {
			return err
		}
	}
	s.virtual[fd] = f
	return nil
}

func (s *Set) removeVirtual(fd int) {
	s.mu.Lock()
	f := s.virtual[fd]
	delete(s.virtual, fd)
	s.mu.Unlock()
	if f != nil {
		f.end()
	}
}

// end ends the use of a file that has been removed from the set.
func (f *virtualFile) end() {
	f.stop()
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	f.leave()
}

// change is called by the file.
func (f *virtualFile) change(state virtual.State) {
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	f.state = state
	f.update()
}

// update reports the file's state to waiters. The caller holds mu.
func (f *virtualFile) update() {
	ready := f.state != virtual.Idle
	if f.eventFD < 0 {
		if ready {
			f.set.change()
		}
		return
	}
	if f.signaled != ready {
		f.signaled = ready
		signal(f.eventFD, ready)
	}
}

// moveTo makes the file's eventfd in a kernelSet. The caller holds mu.
func (f *virtualFile) moveTo(k *kernelSet) (err error) {
	fd, err := newEventFD()
	if err != nil {
		return err
	}
	if err := k.add(fd, f.id); err != nil {
		unix.Close(fd)
		return err
	}
	f.eventFD, f.signaled = fd, false
	f.update()
	return nil
}

// leave undoes moveTo. The caller holds mu.
func (f *virtualFile) leave() {
	if f.eventFD >= 0 {
		unix.Close(f.eventFD)
		f.eventFD = -1
	}
}

// collect returns the events of a set without a kernelSet. The caller holds mu.
func (s *Set) collect(buf []unix.EpollEvent) []unix.EpollEvent {
	n := 0
	add := func(id int32) {
		if n < len(buf) {
			buf[n] = unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
			n++
		}
	}
	if s.woken {
		add(WakeID)
	}
	for _, f := range s.virtual {
		if f.state != virtual.Idle {
			add(f.id)
		}
	}
	return s.addErrors(buf[:n])
}

// addErrors adds EPOLLERR to the events of virtual files that have failed. The caller holds mu.
func (s *Set) addErrors(events []unix.EpollEvent) []unix.EpollEvent {
	for _, f := range s.virtual {
		for i := range events {
			if f.state == virtual.Failed && events[i].Fd == f.id {
				events[i].Events |= unix.EPOLLERR
			}
		}
	}
	return events
}

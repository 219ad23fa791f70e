package event

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Sleep waits in the kernel, if no other one does, and only then in the runtime's
// netpoller. What comes wakes the thread that waits, as in a C program; the netpoller takes
// several times as long (docs/benchmarks/notes.md).
//
// kernel is held by the Sleep that waits so: it keeps a thread, so there is one at a time. One
// that has waited for longer than a moment goes to the netpoller when another one comes.
var kernel slot

const aMoment = 20 * time.Millisecond

type slot struct {
	busy  atomic.Bool
	make  sync.Once
	bell  int // an eventfd that ends the wait, or negative
	waits atomic.Uint64

	mu    sync.Mutex
	seen  uint64    // waits when another Sleep last found the slot busy
	since time.Time // has it been that
}

func (s *slot) begin() bool {
	if !s.busy.CompareAndSwap(false, true) {
		s.contend()
		return false
	}
	s.make.Do(func() {
		var err error
		if s.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			s.bell = -1
		}
	})
	if s.bell < 0 {
		s.end()
		return false
	}
	// A goroutine that has not gone through the scheduler for 10 ms the runtime's monitor
	// takes for stuck, and then looks after all of them every 20 us.
	if s.waits.Add(1)%32 == 0 {
		runtime.Gosched()
	}
	return true
}

func (s *slot) end() { s.busy.Store(false) }

// contend ends the wait of the Sleep that has the slot if that takes long.
func (s *slot) contend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.waits.Load(); {
	case n != s.seen:
		s.seen, s.since = n, time.Now()
	case n > 0 && time.Since(s.since) > aMoment: // or there is no bell yet
		s.ring()
	}
}

var one = [8]byte{1}

func (s *slot) ring() { unix.Write(s.bell, one[:]) }

// sleepInKernel calls op when the file is readable, and returns when it has been called,
// when the bell rings, and at the time.
func (f *File) sleepInKernel() {
	if f.watch.turn(false) != nil {
		return
	}
	var limit *unix.Timespec
	if !f.until.IsZero() {
		t := unix.NsecToTimespec(int64(max(time.Until(f.until), 0)))
		limit = &t
	}
	for {
		fds := [2]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(kernel.bell), Events: unix.POLLIN}}
		n, err := unix.Ppoll(fds[:], limit, nil)
		rang := fds[1].Revents != 0 // maybe late, for a Sleep that has left
		if rang {
			var count [8]byte
			unix.Read(kernel.bell, count[:])
		}
		switch {
		case err == unix.EINTR:
		case n <= 0 || fds[0].Revents == 0 || f.try() || rang:
			return
		}
	}
}

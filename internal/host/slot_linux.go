//go:build !nordma

package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Sleep waits in the kernel if no other one does, and otherwise in the runtime's netpoller.
// In the kernel an event wakes the waiting thread itself, as in a C program; the netpoller
// takes several times as long (docs/benchmarks.md).
//
// polling is held by the Sleep that waits in the kernel. It blocks a thread, so there is one at
// a time. After more than maxKernelWait it moves to the netpoller when another Sleep starts.
var polling slot

const maxKernelWait = 20 * time.Millisecond

// yieldEvery is how often a goroutine that waits in the kernel goes through Go's scheduler.
const yieldEvery = 5 * time.Millisecond

type slot struct {
	busy   atomic.Bool
	init   sync.Once
	wakeFD int // an eventfd that ends the wait; negative if there is none
	waits  atomic.Uint64

	yielded time.Time // used by the Sleep that holds the slot

	makeWay atomic.Bool // the wait that holds the slot must move; contend sets it

	mu    sync.Mutex
	seen  uint64    // waits when another Sleep last found the slot busy
	since time.Time // when seen was set
}

func (s *slot) tryAcquire() bool {
	if !s.busy.CompareAndSwap(false, true) {
		s.contend()
		return false
	}
	s.init.Do(func() {
		var err error
		if s.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			s.wakeFD = -1
		}
	})
	if s.wakeFD < 0 {
		s.release()
		return false
	}
	// The runtime's monitor assumes that a goroutine is stuck if it has not gone through the
	// scheduler for 10 ms, and then checks all of them every 20 us. Gosched wakes another thread, so
	// it is called seldom, and so is the clock.
	if s.waits.Add(1)%8 == 0 {
		if now := time.Now(); now.Sub(s.yielded) > yieldEvery {
			s.yielded = now
			runtime.Gosched()
		}
	}
	return true
}

func (s *slot) release() { s.busy.Store(false) }

// contend ends the wait of the Sleep that holds the slot, if it is longer than maxKernelWait.
func (s *slot) contend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.waits.Load(); {
	case n != s.seen:
		s.seen, s.since = n, time.Now()
	case n > 0 && time.Since(s.since) > maxKernelWait: // if n is 0, there is no wakeFD yet
		s.makeWay.Store(true)
		s.wake()
	}
}

var one = [8]byte{1}

func (s *slot) wake() { unix.Write(s.wakeFD, one[:]) }

// sleepInKernel calls op when the file is readable. It returns when op has returned anything
// other than EAGAIN, when the Sleep is woken or must make way, and at the time.
func (f *kernelEvents) sleepInKernel() {
	if f.watch.setEnabled(false) != nil || !f.await(inKernel) {
		return
	}
	for {
		var limit *unix.Timespec
		if !f.until.IsZero() {
			t := unix.NsecToTimespec(int64(max(time.Until(f.until), 0)))
			limit = &t
		}
		fds := [2]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(polling.wakeFD), Events: unix.POLLIN}}
		n, err := unix.Ppoll(fds[:], limit, nil)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || fds[0].Revents != 0 && f.try(inKernel) {
			return
		}
		if fds[1].Revents != 0 { // perhaps for a Sleep that has ended
			var count [8]byte
			unix.Read(polling.wakeFD, count[:])
			if polling.makeWay.Swap(false) || f.woken.Load() {
				return
			}
		}
	}
}

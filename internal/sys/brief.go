package sys

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A wait stays in the kernel for a moment before it goes to the runtime's
// netpoller: what comes that soon, as most answers of a peer do, wakes the thread
// that waits, as in a C program. By way of the netpoller it takes the scheduler's
// waking and looking around besides, which is nothing where a thread switch costs
// a microsecond, and doubles the way there and back where it costs more
// (TestStream in tests/bench).
const (
	briefly = 20 * time.Millisecond
	// A wait may notice between shortest and longest late that it is to end.
	shortest = time.Millisecond
	longest  = 4 * time.Millisecond
	// still is how long the waits let the goroutine have its thread. One that
	// has not gone through the scheduler for 10 ms the runtime's monitor takes
	// for stuck, and then looks after all every 20 us.
	still = 4 * time.Millisecond
)

// brief is held by who waits so: it holds a thread meanwhile, so there is one at
// a time, and the others go to the netpoller at once.
var brief struct {
	atomic.Bool
	yielded time.Duration // to the scheduler, for the last time, by Monotonic
}

// waitBriefly waits for the file to be readable, for a moment or until ended
// says so.
func (e *EventFile) waitBriefly(ended func() bool) {
	if brief.CompareAndSwap(false, true) {
		e.watch.turn(false)
		e.awaitReadable(ended)
		brief.Store(false)
	}
}

// leader is the Lead that is under way, kept so that it allocates nothing.
type leader struct {
	ended func() bool
	op    func(fd int) error
	stop  func() bool
	run   func(uintptr)
}

func (e *EventFile) prepareLeader() {
	l := &e.leader
	l.stop = func() bool { return l.ended() || e.closing.Load() }
	l.run = func(uintptr) {
		e.lead()
		defer e.unlead()
		for !l.stop() && e.awaitReadable(l.stop) && l.op(e.fd) == nil {
		}
	}
}

// Lead has the caller wait in place of the one in Do, for a moment or until ended
// returns true, and calls op whenever the file is readable. It does nothing if another
// such wait is under way.
func (e *EventFile) Lead(ended func() bool, op func(fd int) error) {
	if !brief.CompareAndSwap(false, true) {
		return
	}
	l := &e.leader
	l.ended, l.op = ended, op
	e.raw.Control(l.run)
	l.ended, l.op = nil, nil
	brief.Store(false)
}

// lead has Do take nothing.
func (e *EventFile) lead() {
	e.taking.Lock()
	defer e.taking.Unlock()
	e.led = true
	e.watch.turn(false)
}

// unlead has Do begin again: what is there by then it is told of.
func (e *EventFile) unlead() {
	e.taking.Lock()
	defer e.taking.Unlock()
	e.led = false
	if e.doing {
		e.watch.turn(true)
	}
}

func (e *EventFile) awaitReadable(ended func() bool) bool {
	begin := Monotonic()
	for now, slice := begin, shortest; ; {
		if now-brief.yielded > still {
			brief.yielded = now
			runtime.Gosched()
		}
		fds := [1]unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
		limit := unix.NsecToTimespec(int64(slice))
		if n, err := unix.Ppoll(fds[:], &limit, nil); n != 0 || err != nil {
			return n > 0
		}
		now = Monotonic()
		if ended() || now-begin >= briefly {
			return false
		}
		slice = min(max(now-begin, shortest), longest)
	}
}

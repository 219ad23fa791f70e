package event

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Sleep waits in the kernel for a moment before it goes to the runtime's netpoller. What
// comes that soon, as most answers of a peer do, wakes the thread that waits, as in a C
// program; the netpoller takes several times as long (docs/benchmarks/notes.md).
const aMoment = 20 * time.Millisecond

// brief is held by the Sleep that waits so: it has a thread of its own meanwhile, so there
// is one at a time, and the others go to the netpoller at once.
var brief briefSlot

type briefSlot struct {
	busy  atomic.Bool
	make  sync.Once
	bell  int // an eventfd that ends the wait, or negative
	waits uint
}

func (b *briefSlot) begin() bool {
	if !b.busy.CompareAndSwap(false, true) {
		return false
	}
	b.make.Do(func() {
		var err error
		if b.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			b.bell = -1
		}
	})
	if b.bell < 0 {
		b.end()
		return false
	}
	// A goroutine that has not gone through the scheduler for 10 ms the runtime's monitor
	// takes for stuck, and then looks after all of them every 20 us.
	if b.waits++; b.waits%32 == 0 {
		runtime.Gosched()
	}
	return true
}

func (b *briefSlot) end() { b.busy.Store(false) }

var one = [8]byte{1}

func (b *briefSlot) ring() { unix.Write(b.bell, one[:]) }

func (b *briefSlot) drain() {
	var count [8]byte
	unix.Read(b.bell, count[:])
}

// sleepBriefly calls op when the file is readable, and returns when it has been called,
// when the bell rings, and after a moment.
func (f *File) sleepBriefly() {
	if f.watch.turn(false) != nil {
		return
	}
	wait := aMoment
	if !f.until.IsZero() {
		wait = max(min(wait, time.Until(f.until)), 0)
	}
	limit := unix.NsecToTimespec(int64(wait))
	for {
		fds := [2]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(brief.bell), Events: unix.POLLIN}}
		n, err := unix.Ppoll(fds[:], &limit, nil)
		switch {
		case err == unix.EINTR:
		case n <= 0 || fds[0].Revents == 0 || f.try():
			return
		}
	}
}

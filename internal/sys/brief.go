package sys

import (
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
	briefly = 5 * time.Millisecond
	slice   = time.Millisecond // how late it may notice that it is to end
)

// brief is held by who waits so: it holds a thread meanwhile, so there is one at
// a time, and the others go to the netpoller at once.
var brief atomic.Bool

// waitBriefly waits for fd to be readable, for a moment or until ended says so.
func waitBriefly(fd int, ended func() bool) {
	if !brief.CompareAndSwap(false, true) {
		return
	}
	defer brief.Store(false)
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for range briefly / slice {
		limit := unix.NsecToTimespec(int64(slice))
		if n, err := unix.Ppoll(fds[:], &limit, nil); n != 0 || err != nil || ended() {
			return
		}
	}
}

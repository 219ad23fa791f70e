package sys

import (
	"runtime"
	"unsafe"

	"github.com/goverbs/verbs/internal/unix"
)

// Uninterrupted calls f, which makes a system call, with signals blocked on its
// thread. The runtime often sends signals to its threads, to preempt goroutines,
// and some system calls must not be interrupted.
func Uninterrupted(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_SETMASK, &blockedSignals, &old) == nil {
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}
	return f()
}

// blockedSignals is the set of all signals except the one with which the runtime makes every
// thread run a function (syscall.AllThreadsSyscall): its sender waits for all threads.
var blockedSignals = func() (set unix.Sigset_t) {
	const all = 33 - 1
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	word := unsafe.Sizeof(set.Val[0]) * 8
	set.Val[all/word] &^= 1 << (all % word)
	return set
}()

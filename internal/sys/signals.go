package sys

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Uninterrupted calls f, which makes a system call, while its thread takes no
// signals. The runtime sends some to its threads all the time, to have goroutines
// make room for others, and there are calls which they do harm to.
func Uninterrupted(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_SETMASK, &held, &old) == nil {
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}
	return f()
}

// held are all signals but the one with which the runtime has every thread do
// something (syscall.AllThreadsSyscall), whose sender waits for it.
var held = func() (set unix.Sigset_t) {
	const all = 33 - 1
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	word := unsafe.Sizeof(set.Val[0]) * 8
	set.Val[all/word] &^= 1 << (all % word)
	return set
}()

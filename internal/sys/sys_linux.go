//go:build !nordma

package sys

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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

// memlockLimit returns RLIMIT_MEMLOCK in bytes.
func memlockLimit() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return Unlimited
	}
	return r.Cur
}

// LocksFreely reports whether this process has CAP_IPC_LOCK: most kernels exempt it from the limit.
func LocksFreely() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}

// KernelRelease returns the kernel's version, "6.12.1", or "" on other systems than Linux.
func KernelRelease() string {
	var u unix.Utsname
	unix.Uname(&u) // fails for bad addresses only
	return unix.ByteSliceToString(u.Release[:])
}

// ErrnoName returns the name of an error number, "EINVAL", or "" if it is not known.
func ErrnoName(e syscall.Errno) string { return unix.ErrnoName(e) }

// Nap blocks the goroutine for about 20 µs. Unlike time.Sleep it uses the machine's clock also in a
// bubble of testing/synctest, whose own stands still as long as a goroutine waits for a mutex.
func Nap() { unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil) }

// Yield lets another thread run, without telling Go's scheduler.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

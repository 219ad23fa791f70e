package provider

import (
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
)

// call makes the system call that runs the command. It is in a file of its own, which
// tests/bench/native replaces.
func (c *command) call(trap, a2, a3 uintptr) (errno syscall.Errno) {
	for {
		// RawSyscall, which does not inform the scheduler, costs less for commands that
		// only queue work (BenchmarkDoorbell in package uverbs). For commands in which
		// the kernel does the work, Syscall costs little in comparison (BenchmarkWrite
		// shows no difference on siw) and does not make other goroutines and the garbage
		// collector wait.
		if c.blocking {
			_, _, errno = unix.Syscall(trap, c.fd, a2, a3)
		} else {
			_, _, errno = unix.RawSyscall(trap, c.fd, a2, a3)
		}
		if errno != syscall.EINTR {
			return errno
		}
	}
}

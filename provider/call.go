package provider

import "golang.org/x/sys/unix"

// call makes the system call that runs the command. It is in a file of its own, for which
// tests/bench/native has another.
func (c *command) call(trap, a2, a3 uintptr) (errno unix.Errno) {
	for {
		// A command that only queues work is not worth telling the scheduler
		// of: RawSyscall costs less (BenchmarkDoorbell in package uverbs). One
		// in which the kernel does the work is: it costs little then
		// (BenchmarkWrite shows no difference on siw), and spares others the
		// wait, the garbage collector among them.
		if c.long {
			_, _, errno = unix.Syscall(trap, c.fd, a2, a3)
		} else {
			_, _, errno = unix.RawSyscall(trap, c.fd, a2, a3)
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

package sys

import (
	"cmp"
	"syscall"
)

// SyscallConn gives access to the file, which stays open while it is used.
func (e *EventFile) SyscallConn() syscall.RawConn { return rawConn{e} }

type rawConn struct{ e *EventFile }

func (c rawConn) Control(f func(fd uintptr)) error { return c.e.raw.Control(f) }

func (c rawConn) Read(f func(fd uintptr) bool) error {
	var failed error
	err := c.e.watch.raw.Read(func(uintptr) bool {
		if f(uintptr(c.e.fd)) {
			return true
		}
		failed = c.e.watch.turn(true)
		return failed != nil
	})
	return cmp.Or(failed, err)
}

func (c rawConn) Write(func(fd uintptr) bool) error { return syscall.EBADF }

package sys

import "syscall"

// SyscallConn gives access to the file, which stays open while it is used.
func (e *EventFile) SyscallConn() syscall.RawConn { return e.raw }

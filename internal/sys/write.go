package sys

import (
	"errors"
	"runtime"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
)

// ErrRefused is returned by [WriteCommand] if the kernel accepts no commands from the
// calling thread, because its credentials are not those with which the file was
// opened (ib_safe_file_access).
var ErrRefused = errors.New("the thread's credentials are not those that opened the file")

// WriteCommand runs the command in b by writing it to fd.
func WriteCommand(fd int, b []byte) error {
	err := writeAll(fd, b)
	if err != syscall.EACCES {
		return err
	}
	// It may be the command's own error. A write that is too short for a command fails with EINVAL
	// on a thread that may write.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if writeAll(fd, b[:1]) == syscall.EACCES {
		return ErrRefused
	}
	return writeAll(fd, b)
}

func writeAll(fd int, b []byte) error {
	for {
		if _, err := host.Write(fd, b); err != syscall.EINTR {
			return err
		}
	}
}

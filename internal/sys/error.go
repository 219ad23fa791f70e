package sys

import (
	"errors"
	"io/fs"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned for use of a closed object. It matches net.ErrClosed
// and fs.ErrClosed too.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "use of closed object" }
func (closedError) Is(target error) bool { return target == net.ErrClosed || target == fs.ErrClosed }

// Error is a failed operation: what was attempted, on what, and why.
type Error struct {
	Op     string // "create CQ"
	Device string // "rxe0"; empty if none is involved
	Object string // "QP 17", "10.9.0.1:7471"; may be empty
	Err    error  // often a unix.Errno
	Hint   string // what to do about it; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Object != "" {
		b.WriteString(" " + e.Object)
	}
	if e.Device != "" {
		b.WriteString(" on " + e.Device)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Is makes the errnos with which the kernel says that a driver lacks a
// feature match errors.ErrUnsupported.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported &&
		(errors.Is(e.Err, unix.EOPNOTSUPP) || errors.Is(e.Err, unix.ENOSYS) || errors.Is(e.Err, unix.EPROTONOSUPPORT))
}

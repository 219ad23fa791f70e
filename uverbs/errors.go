package uverbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrClosed is use after Close. It matches net.ErrClosed and
	// fs.ErrClosed.
	ErrClosed = sys.ErrClosed
	// ErrInUse is Close of an object that others still stand on.
	ErrInUse = errors.New("object is in use")
	// ErrNoDevice is the absence of a device of that name, or of any.
	ErrNoDevice = errors.New("no such RDMA device")
	// ErrNoNode is a device without its /dev/infiniband/uverbsN, as in
	// containers that were not given it.
	ErrNoNode = errors.New("RDMA device has no device node")
	// ErrNoDriver is a device whose driver this package cannot drive.
	ErrNoDriver = errors.New("no provider for the device's driver")
	// ErrRange is an argument outside an object's bounds.
	ErrRange = errors.New("out of range")
)

// hint says what usually helps against an errno of an operation.
func hint(op string, err error) string {
	switch {
	case op == opRegister && errors.Is(err, unix.ENOMEM):
		return "locked memory is limited: see ulimit -l, RLIMIT_MEMLOCK or LimitMEMLOCK="
	case op == "open" && errors.Is(err, unix.EACCES):
		return "the device node does not admit this user"
	case op == "open" && errors.Is(err, unix.ENOENT):
		return "pass the device node into this container, or load ib_uverbs"
	case errors.Is(err, unix.EIO):
		return "the device was removed"
	}
	return ""
}

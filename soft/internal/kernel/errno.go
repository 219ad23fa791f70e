package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
)

// Error numbers for which package unix has no name.
const (
	errBusy           = syscall.EBUSY
	errNoSpace        = syscall.ENOSPC
	errNoTTY          = syscall.ENOTTY
	errPerm           = syscall.EPERM
	errProtoNoSupport = syscall.EPROTONOSUPPORT

	errNoData = unix.Errno(61) // ENODATA of Linux, which other systems lack
)

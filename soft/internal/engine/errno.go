package engine

import (
	"syscall"

	"github.com/goverbs/verbs/internal/unix"
)

// Error numbers for which package unix has no name.
const (
	errBusy              = syscall.EBUSY
	errNoData unix.Errno = 61 // ENODATA of Linux, which other systems may lack
)

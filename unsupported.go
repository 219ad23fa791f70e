//go:build !plan9

package verbs

import (
	"errors"
	"syscall"
)

// Is reports a match with errors.ErrUnsupported for EPROTONOSUPPORT, the error of ioctl methods
// that the kernel does not have (ib_uverbs_cmd_verbs). Other errnos of this kind match by
// themselves.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported && errors.Is(e.Err, syscall.EPROTONOSUPPORT)
}

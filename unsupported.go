//go:build !plan9

package verbs

import (
	"errors"
	"syscall"
)

// Is reports a match with errors.ErrUnsupported for EPROTONOSUPPORT, by which the kernel
// refuses some features. The reason itself matches for other such errnos.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported && errors.Is(e.Err, syscall.EPROTONOSUPPORT)
}

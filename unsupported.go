//go:build !plan9

package verbs

import (
	"errors"
	"syscall"
)

// Is reports a match with errors.ErrUnsupported for EPROTONOSUPPORT, with which the
// kernel refuses some features. Other errnos of this kind match by themselves.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported && errors.Is(e.Err, syscall.EPROTONOSUPPORT)
}

package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
)

// hint returns the usual remedy for an error of an operation, or an empty string.
func hint(op string, err error) string {
	if pinned, ok := errors.AsType[*pinError](err); ok {
		return pinned.hint
	}
	switch {
	case op == "open" && errors.Is(err, syscall.EACCES):
		return "give this user access to the device node"
	case op == "open" && errors.Is(err, syscall.ENOENT):
		return "pass the device node into this container, or load ib_uverbs"
	case errors.Is(err, verbs.ErrNoDriver):
		return "import a package that registers one"
	}
	return ""
}

// explain adds what the kernel means by an error: files of removed devices answer EIO, and mlx5
// does ENOLINK from a fatal error of its firmware until then (mlx5_internal_err_ret_value).
func explain(err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOLINK) {
		return fmt.Errorf("%w: %w", verbs.ErrDeviceRemoved, err)
	}
	return err
}

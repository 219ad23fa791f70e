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

// explain adds the meaning of an error: calls on a removed device fail with EIO (ib_uverbs_ioctl),
// and on mlx5 with ENOLINK after a fatal error of its firmware (mlx5_internal_err_ret_value).
func explain(err error) error {
	const enolink = syscall.Errno(67) // of Linux; OpenBSD has no name for it
	if errors.Is(err, syscall.EIO) || errors.Is(err, enolink) {
		return fmt.Errorf("%w: %w", verbs.ErrDeviceRemoved, err)
	}
	return err
}

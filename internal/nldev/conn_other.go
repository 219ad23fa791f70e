//go:build !linux

package nldev

import (
	"context"
	"errors"
)

// Do fails: only Linux has RDMA's netlink family.
func Do(int, Attrs) (Attrs, error) { return nil, errors.ErrUnsupported }

// Dump fails like Do.
func Dump(int, Attrs, func(Attrs) error) error { return errors.ErrUnsupported }

// Monitor fails like Do.
func Monitor(context.Context, func(Attrs) error) error { return errors.ErrUnsupported }

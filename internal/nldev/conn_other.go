//go:build !linux

package nldev

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

var errNoRDMA = fmt.Errorf("%w: %w", verbs.ErrNoRDMA, errors.ErrUnsupported)

// Do fails: only Linux has RDMA's netlink family.
func Do(int, Attrs) (Attrs, error) { return nil, errNoRDMA }

// Dump fails like Do.
func Dump(int, Attrs, func(Attrs) error) error { return errNoRDMA }

// Notify returns at once.
func Notify(context.Context, func()) {}

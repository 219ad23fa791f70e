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

// Monitor fails like Do.
func Monitor(context.Context, func(Attrs) error) error { return errNoRDMA }

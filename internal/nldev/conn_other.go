//go:build !linux

package nldev

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

var errNoRDMA = fmt.Errorf("%w: %w", verbs.ErrNoRDMA, errors.ErrUnsupported)

// do fails: only Linux has RDMA's netlink family.
func do(int, Attrs) (Attrs, error) { return nil, errNoRDMA }

func dump(int, Attrs, func(Attrs) error) error { return errNoRDMA }

// Notify returns at once.
func Notify(context.Context, func()) {}

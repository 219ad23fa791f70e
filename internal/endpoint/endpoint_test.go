//go:build linux

package endpoint_test

import (
	"context"
	"errors"
	"testing"

	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestNewFails makes the objects of an end on a device that has no queue so long.
func TestNewFails(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.EachClean(t, func(t *testing.T, device string) {
		dev := labtest.OpenDevice(t, device)
		if l, err := endpoint.New(endpoint.Port{Dev: dev}, endpoint.Options{Depth: 1 << 30}); l != nil || err == nil {
			t.Errorf("%v, %v", l, err)
		}
	})
}

// TestOneEndReturns lets one end return, which ends the other one's Swap, once it has all messages.
func TestOneEndReturns(t *testing.T) {
	failed := errors.New("failed")
	for _, early := range []bool{true, false} {
		got := 0
		active, passive := endpoint.Both(func(active bool, swap endpoint.Swap) error {
			if active == early {
				if _, err := swap(endpoint.Address{RKey: 1}); err != nil {
					return err
				}
				return failed
			}
			for {
				a, err := swap(endpoint.Address{})
				if err != nil {
					return err
				}
				got += int(a.RKey)
			}
		})
		if !early {
			active, passive = passive, active
		}
		if active != failed || passive != endpoint.ErrEnded || got != 1 {
			t.Errorf("%v, %v, after %d messages", active, passive, got)
		}
	}
}

// TestCancel ends the wait for a completion by its context.
func TestCancel(t *testing.T) {
	labtest.Require(t)
	l := labtest.Made(endpoint.New(endpoint.Port{Dev: labtest.Open(t)}, endpoint.Options{}))(t)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, err := l.Wait(ctx, l.SendCQ); err != stopped {
		t.Error(err)
	}
}

//go:build linux

package scenario_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
)

// TestFailure: the actor whose step fails says which it is, and the other one has nothing to add.
func TestFailure(t *testing.T) {
	labtest.Require(t)
	broken := errors.New("broken")
	for _, active := range []bool{true, false} {
		s := scenario.Scenario{Run: func(a *scenario.Actor) {
			a.Turns(1, 100)
			if a.Active == active {
				a.Must(broken)
			}
			a.Turns(1, 100)
		}}
		err := s.Loopback(t.Context(), endpoint.Port{Dev: labtest.Open(t)})
		role, other := "active role: ", "passive role: "
		if !active {
			role, other = other, role
		}
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), role) || strings.Contains(err.Error(), other) {
			t.Errorf("active %v: %v", active, err)
		}
	}
}

// TestDamage finds data that is not what was sent.
func TestDamage(t *testing.T) {
	labtest.Require(t)
	s := scenario.Scenario{Run: func(a *scenario.Actor) {
		a.Swap = func(swap endpoint.Swap) endpoint.Swap {
			return func(m endpoint.Address) (endpoint.Address, error) {
				if a.Active {
					a.MR.Bytes()[50]++ // after the pattern was written there, and before it is sent
				}
				return swap(m)
			}
		}(a.Swap)
		a.Turns(1, 100)
	}}
	err := s.Loopback(t.Context(), endpoint.Port{Dev: labtest.Open(t)})
	if want := "passive role: message 0: damaged data: 1 bytes differ, the first at 50"; err == nil || err.Error() != want {
		t.Errorf("%v, not %s", err, want)
	}
}

// TestCancel ends a scenario by its context.
func TestCancel(t *testing.T) {
	labtest.Require(t)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := scenario.Scenario{Run: func(a *scenario.Actor) {
		if a.Active {
			cancel(stopped)
			_, err := a.Wait(a.Ctx, a.SendCQ)
			a.Must(err)
		}
	}}
	if err := s.Loopback(ctx, endpoint.Port{Dev: labtest.Open(t)}); !errors.Is(err, stopped) {
		t.Error(err)
	}
}

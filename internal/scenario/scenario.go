// Package scenario has what a device must do or refuse between two QPs, as one list: verbs check
// plays it with another machine, tests/scenarios in one process and by the clock, tests/soak under
// load.
//
// A [Scenario] has two roles, an [Actor] each, which run the same function. The active one posts
// what the scenario is about, the passive one prepares memory and receives, and checks what comes:
//
//	active                        passive
//	Fill        ── sync ──────►   recv
//	post SEND   ── data ──────►   received, Compare
//
// They agree about each step, and have each other's addresses, by an [endpoint.Swap].
package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

// Scenario is something that a device must do or refuse.
type Scenario struct {
	Name string // in reports
	Core string // the tests of rdma-core (tests/test_*.py) that do the same: "file/test", by spaces
	Options
	Run func(*Actor) // of both roles
}

// Options are what a scenario needs. The zero value is RC with small queues.
type Options struct {
	Type     verbs.QPType
	CM       bool // connected by the connection manager
	SRQ      bool
	Events   bool
	OneCQ    bool
	MaxSGL   bool                  // requests may have as many SGEs as the device takes
	Access   verbs.Access          // to memory; all that the device supports if zero
	Extra    verbs.Access          // to memory, besides
	RC       uverbs.ConnectOptions // Access is all that the device supports if zero
	Memory   int                   // bytes; 64 KiB if zero
	NoIWARP  string                // why iWARP does not have it
	NoSIW    string                // why the kernel's siw does not, unlike other iWARP devices
	Features []uverbs.Feature
}

// Missing returns why a device does not have what the scenario needs, or nil. It matches
// errors.ErrUnsupported.
func (o *Options) Missing(dev *uverbs.Context) error {
	for _, f := range o.Features {
		if err := dev.Probe(f); err != nil {
			return err
		}
	}
	if dev.Device().IWARP() && o.NoIWARP != "" {
		return fmt.Errorf("%s: %w", o.NoIWARP, errors.ErrUnsupported)
	}
	if dev.Driver() == "siw" && o.NoSIW != "" {
		return fmt.Errorf("%s: %w", o.NoSIW, errors.ErrUnsupported)
	}
	return nil
}

// Loopback plays both roles in this process. An error that matches errors.ErrUnsupported is a
// refusal: the device does not have what the scenario needs.
func (s *Scenario) Loopback(ctx context.Context, port endpoint.Port) error {
	var actors [2]*Actor
	play := func(i int, swap endpoint.Swap) error {
		actors[i] = &Actor{Ctx: ctx, Active: i == 0, Swap: swap}
		return actors[i].Play(s, port)
	}
	active, passive := endpoint.Both(func(active bool, swap endpoint.Swap) error {
		if active {
			return play(0, swap)
		}
		return play(1, swap)
	})
	var errs []error
	for i, err := range []error{active, passive} {
		err = errors.Join(err, actors[i].Close())
		if err != nil && !errors.Is(err, endpoint.ErrEnded) {
			errs = append(errs, fmt.Errorf("%s role: %w", [2]string{"active", "passive"}[i], err))
		}
	}
	return errors.Join(errs...)
}

// Judge plays the scenario as Loopback does, unless the device says that it lacks what the scenario needs:
// missing tells what.
func (s *Scenario) Judge(ctx context.Context, port endpoint.Port) (missing, err error) {
	missing = s.Missing(port.Dev)
	if s.CM && missing == nil {
		_, missing = endpoint.Addr(port.Dev.Device()) // it has none on InfiniBand without IPoIB
	}
	if missing == nil {
		err = s.Loopback(ctx, port)
	}
	return missing, err
}

package engine

import (
	"sync/atomic"
	"syscall"
)

// PD is a protection domain.
type PD struct {
	dev *Device
	use useCount
}

// useCount counts the objects that depend on an object.
type useCount struct{ n atomic.Int64 }

// dead is far below zero, so that get fails after the object has ended.
const dead = -1 << 62

// get adds a dependent object. It reports false if the object has ended.
func (c *useCount) get() bool {
	if c.n.Add(1) > 0 {
		return true
	}
	c.n.Add(-1)
	return false
}

func (c *useCount) put() { c.n.Add(-1) }

// end ends the object. It fails with EBUSY if others depend on it.
func (c *useCount) end() error {
	if !c.n.CompareAndSwap(0, dead) {
		if c.n.Load() < 0 {
			return syscall.EINVAL
		}
		return syscall.EBUSY
	}
	return nil
}

// hold returns an object that depends on the PD, after add has stored it. add reports false if it
// has no room, or no free number, for the object.
func hold[T any](pd *PD, object *T, add func() bool) (*T, error) {
	if err := pd.dev.usable(); err != nil {
		return nil, err
	}
	if !pd.use.get() {
		return nil, syscall.EINVAL
	}
	if !add() {
		pd.use.put()
		return nil, syscall.ENOMEM
	}
	return object, nil
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if d.pds.Add(1) > maxPD {
		d.pds.Add(-1)
		return nil, syscall.ENOMEM
	}
	return &PD{dev: d}, nil
}

// Destroy ends the PD. It fails with EBUSY while objects depend on it.
func (pd *PD) Destroy() error {
	err := pd.use.end()
	if err == nil {
		pd.dev.pds.Add(-1)
	}
	return err
}

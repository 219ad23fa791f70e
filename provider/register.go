package provider

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

var registry struct {
	sync.Mutex
	drivers map[uint32]Driver
}

// Register makes a driver available to package uverbs: devices of its kernel driver
// that are opened from then on use it. It panics if d is nil, or if a driver for the
// same ID is registered already. The drivers that are built into package uverbs are
// not registered, so a program can replace each of them once.
func Register(d Driver) {
	if d == nil {
		panic("provider: Register of a nil driver")
	}
	registry.Lock()
	defer registry.Unlock()
	if old, ok := registry.drivers[d.ID()]; ok {
		panic(fmt.Sprintf("provider: Register of driver %q, but %q is registered for rdma_driver_id %d", d.Name(), old.Name(), d.ID()))
	}
	if registry.drivers == nil {
		registry.drivers = map[uint32]Driver{}
	}
	registry.drivers[d.ID()] = d
}

// Drivers returns the registered drivers, sorted by their IDs.
func Drivers() []Driver {
	registry.Lock()
	defer registry.Unlock()
	drivers := make([]Driver, 0, len(registry.drivers))
	for _, d := range registry.drivers {
		drivers = append(drivers, d)
	}
	slices.SortFunc(drivers, func(a, b Driver) int { return cmp.Compare(a.ID(), b.ID()) })
	return drivers
}

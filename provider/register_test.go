package provider

import (
	"slices"
	"sync"
	"testing"
)

type namedDriver struct {
	Driver
	name string
	id   uint32
}

func (d namedDriver) Name() string { return d.name }
func (d namedDriver) ID() uint32   { return d.id }

// TestRegister registers drivers from several goroutines, and one ID twice.
func TestRegister(t *testing.T) {
	defer func() { registry.drivers = nil }()
	if got := Drivers(); len(got) != 0 {
		t.Fatalf("%d drivers are registered", len(got))
	}
	var all sync.WaitGroup
	for id := range uint32(16) {
		all.Go(func() {
			Register(namedDriver{name: "some", id: 100 - id})
			Drivers()
		})
	}
	all.Wait()
	ids := make([]uint32, 0, 16)
	for _, d := range Drivers() {
		ids = append(ids, d.ID())
	}
	if len(ids) != 16 || !slices.IsSorted(ids) || ids[0] != 85 {
		t.Errorf("registered %v", ids)
	}
	for what, d := range map[string]Driver{"nil": nil, "an ID twice": namedDriver{name: "other", id: 90}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was registered", what)
				}
			}()
			Register(d)
		}()
	}
	if len(Drivers()) != 16 {
		t.Errorf("%d drivers after those that were refused", len(Drivers()))
	}
}

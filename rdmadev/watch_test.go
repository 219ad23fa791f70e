package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
)

func TestChanges(t *testing.T) {
	device := func(index int, name string, ports ...Port) Device {
		return Device{Index: index, Name: name, Ports: ports}
	}
	up := Port{Num: 1, State: verbs.PortActive, Rate: 100_000, Interfaces: []string{"eth0"}}
	down, slow, moved := up, up, up
	down.State, slow.Rate, moved.Interfaces = verbs.PortDown, 25_000, []string{"bond0"}
	for _, c := range []struct {
		name          string
		before, after []Device
		want          []string
	}{
		{"same", []Device{device(0, "a", up)}, []Device{device(0, "a", up)}, nil},
		{"added", nil, []Device{device(0, "a", up)}, []string{"device added a 0"}},
		{"removed", []Device{device(0, "a", up)}, nil, []string{"device removed a 0"}},
		{"renamed", []Device{device(0, "a")}, []Device{device(0, "b")}, []string{"device renamed b 0"}},
		{"created again", []Device{device(0, "a")}, []Device{device(1, "a")}, []string{"device removed a 0", "device added a 0"}},
		{"renamed, without indices", []Device{device(-1, "a")}, []Device{device(-1, "b")}, []string{"device removed a 0", "device added b 0"}},
		{"down", []Device{device(0, "a", up)}, []Device{device(0, "a", down)}, []string{"port changed a 1"}},
		{"slower", []Device{device(0, "a", up)}, []Device{device(0, "a", slow)}, []string{"link changed a 1"}},
		{"in a bond", []Device{device(0, "a", up)}, []Device{device(0, "a", moved)}, []string{"interfaces changed a 1"}},
	} {
		var got []string
		for _, change := range changes(c.before, c.after) {
			name := change.New.Name
			if name == "" {
				name = change.Old.Name
			}
			got = append(got, fmt.Sprint(change.Kind, " ", name, " ", change.Port))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestWatchEnds: the error that ends a watch is that of the context, and its cause.
func TestWatchEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for c, err := range (Source{Sys: t.TempDir()}).Watch(ctx, WatchOptions{}) {
		if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			t.Errorf("%+v, %v", c, err)
		}
	}
}

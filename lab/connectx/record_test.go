//go:build linux

package connectx

import (
	"slices"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// TestOffsetsOfEntries records the entries of queues by their indexes.
func TestOffsetsOfEntries(t *testing.T) {
	offsets := map[EventKind][]int{}
	m := newMachine(t, newHub(), 1, func(c *Config) {
		c.Record = func(e Event) {
			if e.Kind == RecordWQE || e.Kind == RecordCQE || e.Kind == RecordEQE {
				offsets[e.Kind] = append(offsets[e.Kind], e.Offset)
			}
		}
	})
	q := m.createCQ(1, 64)
	x := m.withCQ(q)
	for range 3 {
		q.arm(false)
		x.post(ifc.OpcodeNop, update, 0, make([]byte, 64)) // 2 blocks
		q.expect(cqeRequest, x.pi-2, 0)
		m.expectEvent(ifc.EventComp, q.num)
	}
	for kind, want := range map[EventKind][]int{RecordWQE: {0, 2, 4}, RecordCQE: {0, 1, 0}, RecordEQE: {0, 1, 2}} {
		if got := offsets[kind]; !slices.Equal(got, want) {
			t.Errorf("%v: offsets %v, want %v", kind, got, want)
		}
	}
}

package rdmadev

import "testing"

func TestSince(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after uint64
		want          uint64
		exact         bool
	}{
		{"port_rcv_packets", 10, 15, 5, true},
		{"port_rcv_packets", 10, 10, 0, true},
		{"port_rcv_packets", 10, 4, 4, false}, // reset
		{"port_xmit_data", 10, 15, 20, true},  // bytes
		{"link_downed", 254, 255, 1, false},   // does not count on
		{"link_downed", 255, 255, 0, false},
		{"link_downed", 255, 2, 2, false},
		{"symbol_error", 255, 256, 1, true},
	} {
		n, exact := newCounter(c.name, c.after, false).Since(newCounter(c.name, c.before, false))
		if n != c.want || exact != c.exact {
			t.Errorf("%s from %d to %d: %d, %v", c.name, c.before, c.after, n, exact)
		}
	}
}

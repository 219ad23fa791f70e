package rdmadev

import "testing"

func TestSince(t *testing.T) {
	for _, c := range []struct {
		name          string
		hardware      bool
		before, after uint64
		want          uint64
		exact         bool
	}{
		{"port_rcv_packets", false, 10, 15, 5, true},
		{"port_rcv_packets", false, 10, 10, 0, true},
		{"port_rcv_packets", false, 10, 4, 4, false}, // reset
		{"port_xmit_data", false, 10, 15, 20, true},  // bytes
		{"link_downed", false, 254, 255, 1, false},   // does not count on
		{"link_downed", false, 255, 255, 0, false},
		{"link_downed", false, 255, 2, 2, false},
		{"symbol_error", false, 255, 256, 1, true},
		{"out_of_buffer", true, 1<<32 - 6, 4, 10, false},              // wrapped
		{"out_of_buffer", true, 1 << 31, 1<<31 - 1, 1<<31 - 1, false}, // reset
		{"out_of_buffer", true, 1000, 4, 4, false},
		{"rx_bytes", true, 1<<33 + 1, 4, 4, false}, // has more bits
	} {
		n, exact := newCounter(c.name, c.after, c.hardware).Since(newCounter(c.name, c.before, c.hardware))
		if n != c.want || exact != c.exact {
			t.Errorf("%s from %d to %d: %d, %v", c.name, c.before, c.after, n, exact)
		}
	}
}

func TestUnits(t *testing.T) {
	for name, want := range map[string]Unit{"rx_bytes": Bytes, "tx_bytes_cnt": Bytes, "rx_packets_cnt": "", "RxOctets": Bytes} {
		if got := newCounter(name, 1, true).Unit; got != want {
			t.Errorf("%s counts %q, want %q", name, got, want)
		}
	}
}

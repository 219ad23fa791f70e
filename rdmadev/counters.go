package rdmadev

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Counter is the value of a counter of a port or device.
type Counter struct {
	Name  string // as the kernel names it: "port_xmit_data", "rx_write_requests"
	Value uint64 // in Unit
	Unit  Unit

	// Hardware reports whether the counter is one of the driver's (hw_counters), rather
	// than one that the InfiniBand specification defines for every port (counters).
	Hardware bool

	// Max is the value at which a counter of the specification stops until it is reset
	// (IBA 16.1.3.5), or 0 if it has 64 bits. It is also 0 for counters of data and packets:
	// sysfs does not show whether they have 32 or 64 bits.
	Max uint64
}

// Unit is what a counter counts.
type Unit string

const (
	Events Unit = ""      // packets, errors, requests
	Bytes  Unit = "bytes" // the kernel counts words of four bytes in counters, bytes in hw_counters
	Ticks  Unit = "ticks" // of a clock that only the hardware knows
)

// pmaBits are the widths of counters (PORT_PMA_ATTR in drivers/infiniband/core/sysfs.c).
var pmaBits = map[string]int{
	"symbol_error":                    16,
	"link_error_recovery":             8,
	"link_downed":                     8,
	"port_rcv_errors":                 16,
	"port_rcv_remote_physical_errors": 16,
	"port_rcv_switch_relay_errors":    16,
	"port_xmit_discards":              16,
	"port_xmit_constraint_errors":     8,
	"port_rcv_constraint_errors":      8,
	"local_link_integrity_errors":     4,
	"excessive_buffer_overrun_errors": 4,
	"VL15_dropped":                    16,
	"port_xmit_wait":                  32,
}

// Counters returns the counters of the port, the specification's first. It leaves out counters that
// it cannot read: the error names the first, and unwraps to a value whose Unwrap() []error returns
// the error of each. Devices may have files for counters that they lack ("N/A (no PMA)"), which is
// no error.
func (p Port) Counters() ([]Counter, error) {
	a := attrs{dir: p.dir}
	counters := a.counters("counters", false)
	counters = append(counters, a.counters("hw_counters", true)...)
	return counters, a.error("counters", p)
}

// counters reads a folder of counters.
func (a *attrs) counters(dir string, hardware bool) []Counter {
	var counters []Counter
	for _, name := range a.list(dir) {
		if name == "lifespan" { // how long the kernel keeps values, in ms
			continue
		}
		text := a.text(filepath.Join(dir, name))
		if text == "" || strings.HasPrefix(text, "N/A") {
			continue
		}
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			a.errs = append(a.errs, a.unexpected(filepath.Join(dir, name), text))
			continue
		}
		counters = append(counters, newCounter(name, v, hardware))
	}
	return counters
}

func newCounter(name string, value uint64, hardware bool) Counter {
	c := Counter{Name: name, Value: value, Hardware: hardware}
	switch {
	case hardware:
		name := strings.TrimSuffix(name, "_cnt") // erdma's
		if strings.HasSuffix(name, "bytes") || strings.HasSuffix(name, "Octets") {
			c.Unit = Bytes
		}
	case name == "port_xmit_data" || name == "port_rcv_data":
		c.Unit = Bytes
		c.Value *= 4
	case name == "port_xmit_wait":
		c.Unit = Ticks
		fallthrough
	default:
		if bits := pmaBits[name]; bits != 0 {
			c.Max = 1<<bits - 1
		}
	}
	return c
}

// Since returns by how much the counter has grown since an earlier reading. exact reports that the
// counter did not fall in between and is not at its maximum. A counter that fell was reset, or
// belongs to a device that was created again, and has grown at least by its value. mlx5's hardware
// counters have 32 bits and wrap (mlx5_ib_query_q_counters): Since assumes that a counter that fell
// from the upper half of them has wrapped.
func (c Counter) Since(earlier Counter) (n uint64, exact bool) {
	if c.Value >= earlier.Value {
		return c.Value - earlier.Value, c.Max == 0 || c.Value < c.Max
	}
	if grown := uint32(c.Value - earlier.Value); c.Hardware && earlier.Value>>31 == 1 && grown < 1<<31 {
		return uint64(grown), false
	}
	return c.Value, false
}

//go:build linux

package job

import "fmt"

// Wires are the wires between two machines, by the name of the link at both ends.
var Wires = []string{rxeWire, siwWire, ControlWire}

const (
	rxeWire     = "w0"
	siwWire     = "w1"
	ControlWire = "c0"
)

// MAC returns the MAC address of a machine's card on a wire.
func MAC(wire, host int) string { return fmt.Sprintf("52:54:00:09:%02x:%02x", wire, host) }

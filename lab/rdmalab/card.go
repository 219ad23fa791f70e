//go:build linux

package main

import "fmt"

// wires are the wires between two machines, by the name of the link at both ends.
var wires = []string{rxeWire, siwWire, controlWire}

const (
	rxeWire     = "w0"
	siwWire     = "w1"
	controlWire = "c0"
)

// mac returns the MAC address of a machine's card on a wire.
func mac(wire, host int) string { return fmt.Sprintf("52:54:00:09:%02x:%02x", wire, host) }

//go:build linux

// Package pcidev has what emulated cards have in common, whatever their drivers: the PCI
// configuration, numbered objects, queues in the guest's pages, the goroutine of commands, event
// queues, the events of CQs, keys of physical memory, and faults. A card's formats are its own.
//
// A guest may send anything: the types here bound what they keep for it.
package pcidev

import "encoding/binary"

var le = binary.LittleEndian

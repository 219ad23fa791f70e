//go:build linux

package connectx

import (
	"net"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

// Config describes an adapter.
type Config struct {
	Name       string
	PF         bool             // a physical function; a virtual one, as in a cloud's machines, if false
	InfiniBand bool             // the link layer; Ethernet, so RoCE v2, if false
	NoNodeGUID bool             // the node GUID is zero, as a VF's is until an administrator sets it
	MAC        net.HardwareAddr // permanent address, from which the GUIDs are derived
	Network    netif.Network    // carries RoCE's packets; Wire.Network of the same wire reaches its adapters, and can lose packets (FaultLoss)
	Wire       *Wire            // carries Ethernet frames; may be nil

	// Record, if not nil, is called for each event, by several goroutines and with locks held. It
	// must not call the device.
	Record func(Event)
}

// lid is the LID of an InfiniBand port.
func (c *Config) lid() uint16 { return lidOf(c.MAC[4:]) }

// Wire is an Ethernet that connects adapters of this process.
type Wire = wire.Wire

// NewWire makes a wire.
func NewWire() *Wire { return wire.New() }

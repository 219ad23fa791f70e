package verbs

import (
	"fmt"
	"math/bits"
)

// PortAttr contains the state and the limits of a port (ibv_query_port(3)), with the fields of the
// kernel's struct ib_uverbs_query_port_resp.
type PortAttr struct {
	State          PortState
	PhysState      PhysState
	LinkLayer      LinkLayer
	MaxMTU         MTU
	ActiveMTU      MTU
	MaxMessage     int // bytes
	GIDs           int // length of the GID table
	PKeys          int // length of the P_Key table
	BadPKeys       uint32
	QKeyViolations uint32

	// Attributes of InfiniBand subnets:
	LID           uint16
	LMC           uint8
	SMLID         uint16
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	MaxVLs        uint8 // coded: 1 is 1, 2 is 2, 3 is 4, 4 is 8, 5 is 15

	ActiveWidth LinkWidth
	ActiveSpeed LinkSpeed
	CapFlags    uint32 // enum ib_uverbs_query_port_cap_flags
	CapFlags2   uint16
	Flags       uint8 // enum ib_uverbs_query_port_flags
}

// Speed returns the port's data rate in Mb/s, the rate of a lane times the lanes, or 0 if
// it is unknown. For software devices it is not the rate of the network below them.
func (a *PortAttr) Speed() int { return a.ActiveSpeed.Mbps() * a.ActiveWidth.Lanes() }

// PortState is the logical state of a port (enum ib_port_state).
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	return pick(s, "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
}

// PhysState is the physical state of a port (enum ib_port_phys_state).
type PhysState uint8

const (
	PhysSleep PhysState = 1 + iota
	PhysPolling
	PhysDisabled
	PhysConfigurationTraining
	PhysLinkUp
	PhysLinkErrorRecovery
	PhysPhyTest
)

func (s PhysState) String() string {
	return pick(s, "none", "SLEEP", "POLLING", "DISABLED", "CONFIGURATION_TRAINING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY_TEST")
}

// LinkLayer is the link layer of a port (enum rdma_link_layer). It is Ethernet for iWARP.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string { return pick(l, "unspecified", "InfiniBand", "Ethernet") }

// LinkWidth is the number of lanes of a link, as a bit (enum ib_port_width).
type LinkWidth uint8

// Lanes returns the number of lanes, or 0 if it is unknown.
func (w LinkWidth) Lanes() int { return bitOf(uint32(w), 1, 4, 8, 12, 2) }

// String returns the width in the form 4X.
func (w LinkWidth) String() string {
	if n := w.Lanes(); n > 0 {
		return fmt.Sprintf("%dX", n)
	}
	return "unknown"
}

// LinkSpeed is the speed of a lane, as a bit (enum ib_port_speed).
type LinkSpeed uint32

// Mbps returns the speed of a lane in Mb/s, or 0 if it is unknown.
func (s LinkSpeed) Mbps() int {
	return bitOf(uint32(s), 2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000, 200000)
}

// String returns InfiniBand's name of the speed: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR or XDR.
func (s LinkSpeed) String() string {
	return pick(bitOf(uint32(s), 1, 2, 3, 4, 5, 6, 7, 8, 9), "unknown", "SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
}

func pick[T ~int | ~uint8 | ~uint32](i T, names ...string) string {
	if uint64(i) < uint64(len(names)) {
		return names[i]
	}
	return "unknown"
}

// bitOf returns the value for the only bit that is set in v, or 0 if v has no such bit.
func bitOf(v uint32, values ...int) int {
	if i := bits.TrailingZeros32(v); bits.OnesCount32(v) == 1 && i < len(values) {
		return values[i]
	}
	return 0
}

package engine

import (
	"math"
	"net/netip"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// capFlags are rxe's (RXE_DEVICE_CAP_FLAGS).
const capFlags = abi.IB_UVERBS_DEVICE_BAD_PKEY_CNTR |
	abi.IB_UVERBS_DEVICE_BAD_QKEY_CNTR |
	abi.IB_UVERBS_DEVICE_AUTO_PATH_MIG |
	abi.IB_UVERBS_DEVICE_CHANGE_PHY_PORT |
	abi.IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE |
	abi.IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT |
	abi.IB_UVERBS_DEVICE_SYS_IMAGE_GUID |
	abi.IB_UVERBS_DEVICE_RC_RNR_NAK_GEN |
	abi.IB_UVERBS_DEVICE_SRQ_RESIZE |
	abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS |
	abi.IB_UVERBS_DEVICE_MEM_WINDOW |
	abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL |
	abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT |
	abi.IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B |
	abi.IB_UVERBS_DEVICE_ATOMIC_WRITE

// Attr returns the attributes of the device, which are rxe's.
func (d *Device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		NodeGUID: d.cfg.NodeGUID, SysImageGUID: d.cfg.SysImageGUID, VendorID: vendorID, Ports: 1,
		MaxMRSize: math.MaxUint64, PageSizeCap: 0xfffff000, CapFlags: capFlags,
		MaxQP: maxQP, MaxQPWR: maxQPWR, MaxSGE: maxSGE, MaxSGERead: maxSGE, MaxCQ: maxCQ, MaxCQE: maxCQE,
		MaxMR: maxMR, MaxPD: maxPD, MaxMW: maxMW, MaxAH: maxAH, MaxSRQ: maxSRQ, MaxSRQWR: maxSRQWR, MaxSRQSGE: maxSRQSGE,
		MaxPKeys: 64, MaxQPRDAtomic: maxRDAtomic, MaxResRDAtomic: 0x3f000, MaxQPInitRDAtomic: maxRDAtomic,
		AtomicCap: verbs.AtomicHCA, MaxMcastGroup: maxMcastGroup, MaxMcastQPAttach: maxGroupQPs,
		MaxTotalMcastQPAttach: maxAttached, LocalCAAckDelay: ackDelay,
	}
}

// PortAttr returns the attributes of port 1, which are rxe's.
func (d *Device) PortAttr() verbs.PortAttr {
	message := uint32(maxMessage) // as an int it is negative on 32-bit machines
	a := verbs.PortAttr{
		State: verbs.PortActive, PhysState: verbs.PhysLinkUp, LinkLayer: verbs.LinkEthernet,
		MaxMTU: 5, ActiveMTU: d.cfg.MTU, MaxMessage: int(message), GIDs: gidTableLen, PKeys: 1,
		BadPKeys: d.violations.pkeys.Load(), QKeyViolations: d.violations.qkeys.Load(), MaxVLs: 1,
		ActiveWidth: 1, ActiveSpeed: 1, CapFlags: abi.IB_UVERBS_PCF_CM_SUP,
		Flags: abi.IB_UVERBS_QPF_GRH_REQUIRED,
	}
	if d.usable() != nil {
		a.State, a.PhysState = verbs.PortDown, verbs.PhysDisabled
	}
	return a
}

// GIDs returns the valid entries of the GID table. An entry's Interface is 0.
func (d *Device) GIDs() []verbs.GIDEntry {
	gids := d.gids.all()
	list := make([]verbs.GIDEntry, 0, len(gids))
	for i, p := range gids {
		if p != nil {
			list = append(list, verbs.GIDEntry{Port: 1, Index: i, GID: p.addr.As16(), Type: verbs.GIDRoCEv2})
		}
	}
	return list
}

// GID returns entry i of the GID table. It reports false if the entry is not valid.
func (d *Device) GID(i int) (verbs.GID, bool) {
	p := d.gids.at(i)
	if p == nil {
		return verbs.GID{}, false
	}
	return p.addr.As16(), true
}

// GIDIndex returns the index of the GID for a local address, or -1.
func (d *Device) GIDIndex(addr netip.Addr) int {
	if p := d.gids.of(addr.Unmap().WithZone("")); p != nil {
		return p.index
	}
	return -1
}

// checkPKey checks the partition of a packet. The bit of full membership is not compared,
// because the device is a full member.
func (d *Device) checkPKey(p *packet) bool {
	if p.PKey&0x7fff == roce.DefaultPKey&0x7fff {
		return true
	}
	saturate(&d.violations.pkeys)
	return false
}

// saturate counts a violation. The counters have 16 bits.
func saturate(c *atomic.Uint32) {
	for {
		n := c.Load()
		if n == 0xffff || c.CompareAndSwap(n, n+1) {
			return
		}
	}
}

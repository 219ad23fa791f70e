//go:build linux

package connectx

import (
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// port is the adapter's port, and the vport, by which the PCI function is attached to it.
type port struct {
	eqs        *eqTable
	infiniBand bool

	mu    sync.Mutex
	guid  uint64
	node  uint64 // node GUID
	lid   uint64
	vport []byte                // struct nic_vport_context
	addrs [roceAddresses][]byte // struct roce_addr_layout
	caps  uint32                // of an InfiniBand port
	down  bool
	downs uint64 // counts the times it went down
}

var portCommands = map[uint16]func(*port, *call) ifc.Status{
	ifc.OpQueryVportState:       (*port).queryVportState,
	ifc.OpQueryNicVportContext:  (*port).queryNICVport,
	ifc.OpModifyNicVportContext: (*port).modifyNICVport,
	ifc.OpQueryRoceAddress:      (*port).queryRoCEAddress,
	ifc.OpQueryHcaVportContext:  (*port).queryHCAVport,
	ifc.OpModifyHcaVportContext: (*port).modifyHCAVport,
	ifc.OpQueryHcaVportGid:      (*port).queryHCAVportGID,
	ifc.OpQueryHcaVportPkey:     (*port).queryHCAVportPKey,
}

func (p *port) init(cfg Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var eui [8]byte // EUI-64 of the MAC address
	copy(eui[:], []byte{cfg.MAC[0] ^ 2, cfg.MAC[1], cfg.MAC[2], 0xff, 0xfe, cfg.MAC[3], cfg.MAC[4], cfg.MAC[5]})
	p.infiniBand = cfg.InfiniBand
	p.guid = be.Uint64(eui[:])
	p.lid = uint64(cfg.lid())
	p.vport = make([]byte, ifc.NicVportContextSize)
	ifc.NicVportContextMtu.Set(p.vport, 1500)
	p.node = p.guid
	if cfg.NoNodeGUID {
		p.node = 0
	}
	ifc.NicVportContextNodeGuid.Set(p.vport, p.node)
	ifc.SetAll(p.vport, p.guid, ifc.NicVportContextSystemImageGuid, ifc.NicVportContextPortGuid)
	ifc.NicVportContextRoceEn.Set(p.vport, 1)
	copy(ifc.NicVportContextPermanentAddress.At(p.vport)[2:], cfg.MAC)
	p.addrs = [roceAddresses][]byte{}
	p.caps, p.down = capMask, false
}

const (
	portUp, portDown     = 1, 2    // PAOS; of vports 1 and 0
	eth100G              = 1 << 20 // PTYS: 100GBASE-CR4
	ibWidth4, ibSpeedEDR = 4, 0x20
	maxMTUEthernet       = 9216
	maxMTUInfiniBand     = 4096
)

// readRegister reads a register of the port for ACCESS_REG (mlx5_core's port.c).
func (p *port) readRegister(id int, in, out []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	up := uint64(portUp)
	if p.down {
		up = portDown
	}
	switch id {
	// proto_mask selects a protocol (mlx5_query_port_ptys).
	case ifc.RegPtys:
		ifc.PtysRegLocalPort.Set(out, 1)
		ifc.PtysRegProtoMask.Set(out, ifc.PtysRegProtoMask.Get(in))
		if p.infiniBand {
			ifc.SetAll(out, ibWidth4, ifc.PtysRegIbLinkWidthCapability, ifc.PtysRegIbLinkWidthOper)
			ifc.SetAll(out, ibSpeedEDR, ifc.PtysRegIbProtoCapability, ifc.PtysRegIbProtoOper)
		} else {
			ifc.SetAll(out, eth100G, ifc.PtysRegEthProtoCapability, ifc.PtysRegEthProtoAdmin, ifc.PtysRegEthProtoOper)
		}
	// mlx5e bounds the interface's MTU by these (mlx5_query_port_max_mtu), in bytes.
	case ifc.RegPmtu:
		mtu := uint64(maxMTUEthernet)
		if p.infiniBand {
			mtu = maxMTUInfiniBand
		}
		ifc.PmtuRegLocalPort.Set(out, 1)
		ifc.SetAll(out, mtu, ifc.PmtuRegMaxMtu, ifc.PmtuRegAdminMtu, ifc.PmtuRegOperMtu)
	case ifc.RegPaos:
		ifc.PaosRegLocalPort.Set(out, 1)
		ifc.PaosRegAdminStatus.Set(out, portUp)
		ifc.PaosRegOperStatus.Set(out, up)
	// The number of virtual lanes that mlx5_ib reports (mlx5_query_port_vl_hw_cap).
	case ifc.RegPvlc:
		ifc.PvlcRegLocalPort.Set(out, 1)
		ifc.SetAll(out, 4, ifc.PvlcRegVlHwCap, ifc.PvlcRegVlAdmin, ifc.PvlcRegVlOperational)
	}
}

// registers are the registers that ACCESS_REG knows, with the least size of their data. Without a case
// in [port.readRegister], they read as zero.
var registers = map[int]int{
	ifc.RegPtys: ifc.PtysRegSize, ifc.RegPmtu: ifc.PmtuRegSize, ifc.RegPaos: ifc.PaosRegSize, ifc.RegPvlc: ifc.PvlcRegSize,
	ifc.RegPfcc: 16, ifc.RegPpcnt: ifc.PpcntRegSize, ifc.RegNodeDesc: 16, ifc.RegHostEndianness: 16,
}

func (p *port) queryVportState(c *call) ifc.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ifc.QueryVportStateInOtherVport.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	ifc.QueryVportStateOutAdminState.Set(c.out, 1)
	if !p.down {
		ifc.QueryVportStateOutState.Set(c.out, 1)
	}
	return ifc.StatusOk
}

func (p *port) queryNICVport(c *call) ifc.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ifc.QueryNicVportContextInOtherVport.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	copy(ifc.QueryNicVportContextOutNicVportContext.At(c.out), p.vport)
	return ifc.StatusOk
}

// vportFields are the fields that MODIFY_NIC_VPORT_CONTEXT sets, by the bits of its field_select.
var vportFields = map[ifc.Field][]ifc.Field{
	ifc.ModifyNicVportFieldSelectRoceEn:           {ifc.NicVportContextRoceEn},
	ifc.ModifyNicVportFieldSelectMtu:              {ifc.NicVportContextMtu},
	ifc.ModifyNicVportFieldSelectPromisc:          {ifc.NicVportContextPromiscUc, ifc.NicVportContextPromiscMc, ifc.NicVportContextPromiscAll},
	ifc.ModifyNicVportFieldSelectPermanentAddress: {ifc.NicVportContextPermanentAddress},
	ifc.ModifyNicVportFieldSelectNodeGuid:         {ifc.NicVportContextNodeGuid},
	ifc.ModifyNicVportFieldSelectPortGuid:         {ifc.NicVportContextPortGuid},
	ifc.ModifyNicVportFieldSelectDisableUcLocalLb: {ifc.NicVportContextDisableUcLocalLb},
	ifc.ModifyNicVportFieldSelectDisableMcLocalLb: {ifc.NicVportContextDisableMcLocalLb},
	ifc.ModifyNicVportFieldSelectChangeEvent: {
		ifc.NicVportContextArmChangeEvent, ifc.NicVportContextEventOnMtu, ifc.NicVportContextEventOnPromiscChange,
		ifc.NicVportContextEventOnVlanChange, ifc.NicVportContextEventOnMcAddressChange, ifc.NicVportContextEventOnUcAddressChange,
	},
	// The lists of addresses to receive are not kept: the adapter receives every frame on the wire.
	ifc.ModifyNicVportFieldSelectAddressesList: nil,
}

func (p *port) modifyNICVport(c *call) ifc.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	selected := ifc.ModifyNicVportContextInFieldSelect.At(c.in)
	in := ifc.ModifyNicVportContextInNicVportContext.At(c.in)
	if ifc.ModifyNicVportContextInOtherVport.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	left := be.Uint32(selected)
	for bit, fields := range vportFields {
		if !bit.Is(selected) {
			continue
		}
		left &^= 1 << (31 - bit.Off())
		for _, f := range fields {
			f.Copy(p.vport, in)
		}
	}
	if left != 0 { // unknown bits
		return ifc.StatusBadParamErr
	}
	return ifc.StatusOk
}

// linkDowns counts the times the link went down.
func (p *port) linkDowns() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.downs
}

func (p *port) isDown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

// setAddress keeps a struct roce_addr_layout for queries.
func (p *port) setAddress(i int, a []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addrs[i] = a
}

func (p *port) queryRoCEAddress(c *call) ifc.Status {
	i := ifc.QueryRoceAddressInRoceAddressIndex.Int(c.in)
	if i >= roceAddresses {
		return ifc.StatusBadParamErr
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	copy(ifc.QueryRoceAddressOutRoceAddress.At(c.out), p.addrs[i])
	return ifc.StatusOk
}

// Of an InfiniBand port, as its PortInfo has them (IBTA vol. 1, 14.2.5.6): the adapter is its own
// subnet manager.
const (
	defaultPKey = 0xffff
	capMask     = 0x02010048 | 1<<15

	// The kernel's CM sets IB_PORT_CM_SUP (cm_add_one).
	capMaskSettable = 1 << 16
	stateDown       = 1
	stateActive     = 4
	physicalPolling = 2
	physicalUp      = 5
	subnetTimeout   = 18
)

func (p *port) queryHCAVport(c *call) ifc.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx := ifc.QueryHcaVportContextOutHcaVportContext.At(c.out)
	ifc.HcaVportContextNodeGuid.Set(ctx, p.node)
	ifc.SetAll(ctx, p.guid, ifc.HcaVportContextSystemImageGuid, ifc.HcaVportContextPortGuid)
	physical, state := uint64(physicalUp), uint64(stateActive)
	if p.down {
		physical, state = physicalPolling, stateDown
	}
	ifc.HcaVportContextPortPhysicalState.Set(ctx, physical)
	ifc.SetAll(ctx, state, ifc.HcaVportContextPortState, ifc.HcaVportContextVportState)
	ifc.HcaVportContextCapMask1.Set(ctx, uint64(p.caps))
	ifc.HcaVportContextCapMask1FieldSelect.Set(ctx, capMaskSettable)
	ifc.SetAll(ctx, p.lid, ifc.HcaVportContextLid, ifc.HcaVportContextSmLid)
	ifc.HcaVportContextSubnetTimeout.Set(ctx, subnetTimeout)
	return ifc.StatusOk
}

// modifyHCAVport sets bits of the port's capabilities.
func (p *port) modifyHCAVport(c *call) ifc.Status {
	ctx := ifc.ModifyHcaVportContextInHcaVportContext.At(c.in)
	mask := ifc.HcaVportContextCapMask1FieldSelect.U32(ctx)
	if ifc.ModifyHcaVportContextInOtherVport.Is(c.in) || mask&^capMaskSettable != 0 {
		return ifc.StatusBadParamErr
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.caps = p.caps&^mask | ifc.HcaVportContextCapMask1.U32(ctx)&mask
	return ifc.StatusOk
}

func (p *port) queryHCAVportGID(c *call) ifc.Status {
	ifc.QueryHcaVportGidOutGidsNum.Set(c.out, 1)
	if gid := ifc.QueryHcaVportGidOutGid.At(c.out); ifc.QueryHcaVportGidInGidIndex.Int(c.in) == 0 && len(gid) >= 16 {
		be.PutUint64(gid, subnetPrefix)
		be.PutUint64(gid[8:], p.guid)
	}
	return ifc.StatusOk
}

func (*port) queryHCAVportPKey(c *call) ifc.Status {
	first := ifc.QueryHcaVportPkeyInPkeyIndex.Int(c.in)
	// mlx5_core's mlx5_query_hca_vport_pkey reads one key, or all by this index.
	if first == 0xffff {
		first = 0
	}
	if list := ifc.QueryHcaVportPkeyOutPkey.At(c.out); first == 0 && len(list) >= 4 {
		be.PutUint32(list, defaultPKey)
	}
	return ifc.StatusOk
}

// setLink brings the link up or down, and raises the event for the driver.
func (p *port) setLink(up bool) {
	p.mu.Lock()
	if !up && !p.down {
		p.downs++
	}
	p.down = !up
	p.mu.Unlock()
	if up {
		p.event(ifc.PortChangeActive)
	} else {
		p.event(ifc.PortChangeDown)
	}
}

func (p *port) event(subtype uint8) {
	var data [28]byte
	data[8] = 1 << 4 // struct mlx5_eqe_port_state: the port
	p.eqs.event(ifc.EventPortChange, subtype, data[:])
}

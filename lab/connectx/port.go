//go:build linux

package connectx

import "sync"

// port is the adapter's port and the function's place on it, the vport.
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
	downs uint64 // how often it went down
}

var portCommands = map[uint16]func(*port, *call) status{
	opQueryVportState:       (*port).queryVportState,
	opQueryNicVportContext:  (*port).queryNICVport,
	opModifyNicVportContext: (*port).modifyNICVport,
	opQueryRoceAddress:      (*port).queryRoCEAddress,
	opQueryHcaVportContext:  (*port).queryHCAVport,
	opModifyHcaVportContext: (*port).modifyHCAVport,
	opQueryHcaVportGid:      (*port).queryHCAVportGID,
	opQueryHcaVportPkey:     (*port).queryHCAVportPKey,
}

func (p *port) init(cfg Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var eui [8]byte // EUI-64 of the MAC address
	copy(eui[:], []byte{cfg.MAC[0] ^ 2, cfg.MAC[1], cfg.MAC[2], 0xff, 0xfe, cfg.MAC[3], cfg.MAC[4], cfg.MAC[5]})
	p.infiniBand = cfg.InfiniBand
	p.guid = be.Uint64(eui[:])
	p.lid = uint64(cfg.lid())
	p.vport = make([]byte, nicVportContextSize)
	nicVportContextMtu.set(p.vport, 1500)
	p.node = p.guid
	if cfg.NoNodeGUID {
		p.node = 0
	}
	nicVportContextNodeGuid.set(p.vport, p.node)
	for _, f := range []field{nicVportContextSystemImageGuid, nicVportContextPortGuid} {
		f.set(p.vport, p.guid)
	}
	nicVportContextRoceEn.set(p.vport, 1)
	copy(nicVportContextPermanentAddress.at(p.vport)[2:], cfg.MAC)
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

// readRegister answers for a register of the port, as mlx5_core's port.c reads them.
func (p *port) readRegister(id int, in, out []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	up := uint64(portUp)
	if p.down {
		up = portDown
	}
	switch id {
	case regPtys:
		ptysRegLocalPort.set(out, 1)
		ptysRegProtoMask.set(out, ptysRegProtoMask.get(in))
		if p.infiniBand {
			ptysRegIbLinkWidthCapability.set(out, ibWidth4)
			ptysRegIbProtoCapability.set(out, ibSpeedEDR)
			ptysRegIbLinkWidthOper.set(out, ibWidth4)
			ptysRegIbProtoOper.set(out, ibSpeedEDR)
		} else {
			ptysRegEthProtoCapability.set(out, eth100G)
			ptysRegEthProtoAdmin.set(out, eth100G)
			ptysRegEthProtoOper.set(out, eth100G)
		}
	case regPmtu:
		mtu := uint64(maxMTUEthernet)
		if p.infiniBand {
			mtu = maxMTUInfiniBand
		}
		pmtuRegLocalPort.set(out, 1)
		pmtuRegMaxMtu.set(out, mtu)
		pmtuRegAdminMtu.set(out, mtu)
		pmtuRegOperMtu.set(out, mtu)
	case regPaos:
		paosRegLocalPort.set(out, 1)
		paosRegAdminStatus.set(out, portUp)
		paosRegOperStatus.set(out, up)
	case regPvlc:
		pvlcRegLocalPort.set(out, 1)
		pvlcRegVlHwCap.set(out, 4)
		pvlcRegVlAdmin.set(out, 4)
		pvlcRegVlOperational.set(out, 4)
	}
}

// registers are those of ACCESS_REG, with the least size of their data. Those that neither
// [port.readRegister] nor [Device.portCounters] has read as zero.
var registers = map[int]int{
	regPtys: ptysRegSize, regPmtu: pmtuRegSize, regPaos: paosRegSize, regPvlc: pvlcRegSize,
	regPfcc: 16, regPpcnt: ppcntRegSize, regNodeDesc: 16, regHostEndianness: 16,
}

func (p *port) queryVportState(c *call) status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if queryVportStateInOtherVport.is(c.in) {
		return statusBadParamErr
	}
	queryVportStateOutAdminState.set(c.out, 1)
	if !p.down {
		queryVportStateOutState.set(c.out, 1)
	}
	return statusOk
}

func (p *port) queryNICVport(c *call) status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if queryNicVportContextInOtherVport.is(c.in) {
		return statusBadParamErr
	}
	copy(queryNicVportContextOutNicVportContext.at(c.out), p.vport)
	return statusOk
}

// vportFields are what MODIFY_NIC_VPORT_CONTEXT sets, by the bits of its field_select.
var vportFields = map[field][]field{
	modifyNicVportFieldSelectRoceEn:           {nicVportContextRoceEn},
	modifyNicVportFieldSelectMtu:              {nicVportContextMtu},
	modifyNicVportFieldSelectPromisc:          {nicVportContextPromiscUc, nicVportContextPromiscMc, nicVportContextPromiscAll},
	modifyNicVportFieldSelectPermanentAddress: {nicVportContextPermanentAddress},
	modifyNicVportFieldSelectNodeGuid:         {nicVportContextNodeGuid},
	modifyNicVportFieldSelectPortGuid:         {nicVportContextPortGuid},
	modifyNicVportFieldSelectDisableUcLocalLb: {nicVportContextDisableUcLocalLb},
	modifyNicVportFieldSelectDisableMcLocalLb: {nicVportContextDisableMcLocalLb},
	modifyNicVportFieldSelectChangeEvent: {
		nicVportContextArmChangeEvent, nicVportContextEventOnMtu, nicVportContextEventOnPromiscChange,
		nicVportContextEventOnVlanChange, nicVportContextEventOnMcAddressChange, nicVportContextEventOnUcAddressChange,
	},
	// The lists of addresses say what to receive. They are not kept: every frame on the wire is received.
	modifyNicVportFieldSelectAddressesList: nil,
}

func (p *port) modifyNICVport(c *call) status {
	p.mu.Lock()
	defer p.mu.Unlock()
	selected := modifyNicVportContextInFieldSelect.at(c.in)
	in := modifyNicVportContextInNicVportContext.at(c.in)
	if modifyNicVportContextInOtherVport.is(c.in) {
		return statusBadParamErr
	}
	left := uint32(be.Uint32(selected))
	for bit, fields := range vportFields {
		if !bit.is(selected) {
			continue
		}
		left &^= 1 << (31 - bit.off())
		for _, f := range fields {
			f.set(p.vport, f.get(in))
		}
	}
	if left != 0 { // bits that select nothing here
		return statusBadParamErr
	}
	return statusOk
}

// linkDowns returns how often the link went down.
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

func (p *port) queryRoCEAddress(c *call) status {
	i := queryRoceAddressInRoceAddressIndex.int(c.in)
	if i >= roceAddresses {
		return statusBadParamErr
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	copy(queryRoceAddressOutRoceAddress.at(c.out), p.addrs[i])
	return statusOk
}

// Of an InfiniBand port: its P_Key, its capabilities, and those of the subnet manager, which is
// the adapter itself.
const (
	defaultPKey = 0xffff
	capMask     = 0x02010048 | 1<<15

	// What the driver may set: IB_PORT_CM_SUP, by the kernel's CM.
	capMaskSettable = 1 << 16
	stateDown       = 1
	stateActive     = 4
	physicalPolling = 2
	physicalUp      = 5
	subnetTimeout   = 18
)

func (p *port) queryHCAVport(c *call) status {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx := queryHcaVportContextOutHcaVportContext.at(c.out)
	hcaVportContextNodeGuid.set(ctx, p.node)
	for _, f := range []field{hcaVportContextSystemImageGuid, hcaVportContextPortGuid} {
		f.set(ctx, p.guid)
	}
	physical, state := uint64(physicalUp), uint64(stateActive)
	if p.down {
		physical, state = physicalPolling, stateDown
	}
	hcaVportContextPortPhysicalState.set(ctx, physical)
	hcaVportContextPortState.set(ctx, state)
	hcaVportContextVportState.set(ctx, state)
	hcaVportContextCapMask1.set(ctx, uint64(p.caps))
	hcaVportContextCapMask1FieldSelect.set(ctx, capMaskSettable)
	hcaVportContextLid.set(ctx, p.lid)
	hcaVportContextSmLid.set(ctx, p.lid)
	hcaVportContextSubnetTimeout.set(ctx, subnetTimeout)
	return statusOk
}

// modifyHCAVport sets bits of the port's capabilities.
func (p *port) modifyHCAVport(c *call) status {
	ctx := modifyHcaVportContextInHcaVportContext.at(c.in)
	mask := hcaVportContextCapMask1FieldSelect.u32(ctx)
	if modifyHcaVportContextInOtherVport.is(c.in) || mask&^capMaskSettable != 0 {
		return statusBadParamErr
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.caps = p.caps&^mask | hcaVportContextCapMask1.u32(ctx)&mask
	return statusOk
}

func (p *port) queryHCAVportGID(c *call) status {
	queryHcaVportGidOutGidsNum.set(c.out, 1)
	if gid := queryHcaVportGidOutGid.at(c.out); queryHcaVportGidInGidIndex.int(c.in) == 0 && len(gid) >= 16 {
		be.PutUint64(gid, subnetPrefix)
		be.PutUint64(gid[8:], p.guid)
	}
	return statusOk
}

func (*port) queryHCAVportPKey(c *call) status {
	first := queryHcaVportPkeyInPkeyIndex.int(c.in)
	if first == 0xffff { // all
		first = 0
	}
	if list := queryHcaVportPkeyOutPkey.at(c.out); first == 0 && len(list) >= 4 {
		be.PutUint32(list, defaultPKey)
	}
	return statusOk
}

// setLink brings the link up or down, of which the driver gets an event.
func (p *port) setLink(up bool) {
	p.mu.Lock()
	if !up && !p.down {
		p.downs++
	}
	p.down = !up
	p.mu.Unlock()
	if up {
		p.event(portChangeActive)
	} else {
		p.event(portChangeDown)
	}
}

func (p *port) event(subtype uint8) {
	var data [28]byte
	data[8] = 1 << 4 // struct mlx5_eqe_port_state: the port
	p.eqs.event(eventPortChange, subtype, data[:])
}

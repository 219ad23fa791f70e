//go:build linux

package connectx

import "bytes"

// capabilities are what QUERY_HCA_CAP tells. They decide what the drivers use: what is not set
// here is not implemented.
type capabilities struct {
	most, now map[int][]byte // by type
}

const capabilitySize = 0x1000

func (c *capabilities) int(typ int, f field) int { return f.int(c.now[typ]) }

// uarsPerPage returns how many UARs a page of the driver's processor has, as SET_HCA_CAP has told.
func (c *capabilities) uarsPerPage() uint32 {
	return uint32(c.int(capGeneral, cmdHcaCapNumOfUarsPerPage))
}

func (c *capabilities) init(cfg Config) {
	c.most, c.now = map[int][]byte{}, map[int][]byte{}
	sets := map[int][]capability{capGeneral: generalCaps, capAtomic: atomicCaps}
	if cfg.InfiniBand {
		sets[capGeneral] = append(sets[capGeneral][:len(generalCaps):len(generalCaps)], infiniBandCaps...)
	} else {
		sets[capGeneral] = append(sets[capGeneral][:len(generalCaps):len(generalCaps)], ethernetCaps...)
		sets[capEthernetOffloads], sets[capRoce] = offloadCaps, roceCaps
	}
	for typ, list := range sets {
		c.most[typ] = make([]byte, capabilitySize)
		for _, v := range list {
			v.f.set(c.most[typ], v.value)
		}
	}
	if !cfg.InfiniBand {
		c.most[capFlowTable] = flowTableCaps()
	}
	for typ, b := range c.most {
		c.now[typ] = bytes.Clone(b)
	}
}

type capability struct {
	f     field
	value uint64
}

// Limits that the capabilities tell, and the parts of the adapter keep.
const (
	maxEQs        = 64
	maxSendWQE    = 1024 // bytes of a send request: 16 blocks
	logRegister   = 9    // of BlueFlame, both halves
	logUARs       = 13   // pages of the BAR
	maxLogUARPage = 4    // log_uar_page_sz: pages of 64 KiB
	logMaxKLMs    = 16   // parts of a key of keys, each of which the engine gets again when the key changes
	logMaxLSO     = 16   // bytes of what is cut into segments
	logRQTs       = 10   // mlx5e makes some for each of its queues
	roceAddresses = 64   // GIDs

	// Of flow tables: entries of one, tables, and entries in use of one.
	logTableSize = 20
	logTables    = 12
	logFlows     = 12
)

var generalCaps = []capability{
	{cmdHcaCapVhcaId, 1},
	{cmdHcaCapLogMaxSrqSz, 15},
	{cmdHcaCapLogMaxQpSz, 15},
	{cmdHcaCapLogMaxQp, 18},
	{cmdHcaCapLogMaxSrq, 16},
	{cmdHcaCapLogMaxCqSz, 22},
	{cmdHcaCapLogMaxCq, 18},
	{cmdHcaCapLogMaxEqSz, 16},
	{cmdHcaCapLogMaxEq, 6},
	{cmdHcaCapMaxNumEqs, maxEQs},
	{cmdHcaCapLogMaxMkey, 20},
	{cmdHcaCapMaxIndirection, 1},
	{cmdHcaCapLogMaxMrwSz, 32},
	{cmdHcaCapLogMaxKlmListSize, logMaxKLMs},
	{cmdHcaCapLogMaxRaReqQp, 4},
	{cmdHcaCapLogMaxRaResQp, 4},
	{cmdHcaCapMaxQpCnt, 64},
	{cmdHcaCapOutOfSeqCnt, 1},
	{cmdHcaCapRetransmissionQCounters, 1},
	{cmdHcaCapEnhancedErrorQCounters, 1},
	{cmdHcaCapLocalCaAckDelay, 16},
	{cmdHcaCapNumPorts, 1},
	{cmdHcaCapNativePortNum, 1},
	{cmdHcaCapLogMaxMsg, 30},
	{cmdHcaCapCqeVersion, 1},
	{cmdHcaCapCompactAddressVector, 1},
	{cmdHcaCapUmrExtendedTranslationOffset, 1},
	{cmdHcaCapDrainSigerr, 1},
	{cmdHcaCapCqResize, 1},
	{cmdHcaCapCqModeration, 1},
	{cmdHcaCapCqPeriodModeModify, 1},
	{cmdHcaCapBlockLbMc, 1},
	{cmdHcaCapImaicl, 1},
	{cmdHcaCapQkv, 1},
	{cmdHcaCapPkv, 1},
	{cmdHcaCapRc, 1},
	{cmdHcaCapUc, 1},
	{cmdHcaCapUd, 1},
	// Without XRC mlx5_ib does not come up: mlx5_ib_dev_res_init.
	{cmdHcaCapXrc, 1},
	{cmdHcaCapLogMaxXrcd, 16},
	{cmdHcaCapUar4k, 1},
	{cmdHcaCapUarSz, 5}, // MiB of the BAR, as a power of 2
	{cmdHcaCapLogPgSz, 12},
	{cmdHcaCapNumOfUarsPerPage, 1},
	{cmdHcaCapBf, 1},
	{cmdHcaCapLogBfRegSize, logRegister},
	{cmdHcaCapForceTeardown, 1},
	{cmdHcaCapMaxWqeSzSq, maxSendWQE},
	{cmdHcaCapMaxWqeSzRq, 512},
	{cmdHcaCapMaxQpMcg, 64},
	{cmdHcaCapLogMaxMcg, 13},
	// There is one, which mlx5e takes, so that programs get none of their own, and no raw packet QPs.
	// Those would need flows to receive.
	{cmdHcaCapLogMaxTransportDomain, 0},
	{cmdHcaCapLogMaxPd, 16},
	{cmdHcaCapDeviceFrequencyKhz, 1000000},
	{cmdHcaCapDeviceFrequencyMhz, 1000},
	{cmdHcaCapAtomic, 1},
	{cmdHcaCapMaxSglForOptimizedPerformance, 4},
	{cmdHcaCapEthVirt, 1},
	{cmdHcaCapIbVirt, 1},
	{cmdHcaCapVportCounters, 1},
}

var infiniBandCaps = []capability{{cmdHcaCapPortType, 0}}

var ethernetCaps = []capability{
	{cmdHcaCapPortType, 1},
	{cmdHcaCapRoce, 1},
	{cmdHcaCapEthNetOffloads, 1},
	{cmdHcaCapNicFlowTable, 1},
	{cmdHcaCapMaxTc, 8},
	{cmdHcaCapLogMaxRq, 16},
	{cmdHcaCapLogMaxSq, 16},
	{cmdHcaCapLogMaxTir, 16},
	{cmdHcaCapLogMaxTis, 16},
	{cmdHcaCapLogMaxRqt, logRQTs},
	{cmdHcaCapLogMaxRqtSize, 11},
	{cmdHcaCapLogMaxRmp, 16},
	{cmdHcaCapBasicCyclicRcvWqe, 1},
	{cmdHcaCapLogMaxTisPerSq, 3},
	{cmdHcaCapLogMaxStrideSzRq, 10},
	{cmdHcaCapLogMaxStrideSzSq, 10},
	{cmdHcaCapLogMinStrideSzRq, 4},
	{cmdHcaCapLogMinStrideSzSq, 4},
	{cmdHcaCapLogMaxWqSz, 15},
	{cmdHcaCapLogMaxVlanList, 9},
	{cmdHcaCapLogMaxCurrentMcList, 11},
	{cmdHcaCapLogMaxCurrentUcList, 7},
	{cmdHcaCapDisableLocalLbUc, 1},
	{cmdHcaCapDisableLocalLbMc, 1},
	{cmdHcaCapMaxFlowCounter150, 1024},
}

var offloadCaps = []capability{
	{perProtocolNetworkingOffloadCapsCsumCap, 1},
	{perProtocolNetworkingOffloadCapsVlanCap, 1},
	{perProtocolNetworkingOffloadCapsMaxLsoCap, logMaxLSO},
	{perProtocolNetworkingOffloadCapsRssIndTblCap, 8},
	{perProtocolNetworkingOffloadCapsSelfLbEnModifiable, 1},
	{perProtocolNetworkingOffloadCapsWqeVlanInsert, 1},
	{perProtocolNetworkingOffloadCapsWqeInlineMode, 2},
}

// With other versions than RoCE v2, and both types of addresses, mlx5_ib registers the port
// without RoCE, and the kernel warns.
var roceCaps = []capability{
	{roceCapL3Type, 6},
	{roceCapRoceVersion, 4},
	{roceCapRRoceDestUdpPort, 4791},
	{roceCapRRoceMinSrcUdpPort, 0xc000},
	{roceCapRRoceMaxSrcUdpPort, 0xffff},
	{roceCapRoceAddressTableSize, roceAddresses},
}

var atomicCaps = []capability{
	{atomicCapsAtomicOperations, 3}, // compare and swap, fetch and add
	{atomicCapsAtomicSizeQp, 8},
	{atomicCapsSupportedAtomicReq8bEndiannessMode1, 1},
}

// flowTableCaps lets mlx5e make its tables, with matches on all fields.
func flowTableCaps() []byte {
	b := make([]byte, capabilitySize)
	for _, dir := range []field{flowTableNicCapFlowTablePropertiesNicReceive, flowTableNicCapFlowTablePropertiesNicTransmit} {
		p := dir.at(b)
		for _, v := range []capability{
			{flowTablePropLayoutFtSupport, 1},
			{flowTablePropLayoutFlowModifyEn, 1},
			{flowTablePropLayoutModifyRoot, 1},
			{flowTablePropLayoutIdentifiedMissTableMode, 1},
			{flowTablePropLayoutFlowTableModify, 1},
			{flowTablePropLayoutFlowCounter, 1},
			{flowTablePropLayoutLogMaxFtSize, logTableSize},
			{flowTablePropLayoutMaxFtLevel, 64},
			{flowTablePropLayoutLogMaxFtNum, logTables},
			{flowTablePropLayoutLogMaxDestination, 12},
			{flowTablePropLayoutLogMaxFlow, logFlows},
		} {
			v.f.set(p, v.value)
		}
	}
	p := flowTableNicCapFlowTablePropertiesNicReceive.at(b)
	for _, f := range []field{flowTablePropLayoutFtFieldSupport, flowTablePropLayoutFtFieldBitmaskSupport} {
		known := f.at(p)
		for i := range known {
			known[i] = 0xff
		}
		for _, r := range flowTableFieldsSupportedReserved {
			r.clear(known)
		}
	}
	return b
}

var capCommands = map[uint16]func(*capabilities, *call) status{
	opQueryHcaCap: (*capabilities).query,
	opSetHcaCap:   (*capabilities).set,
}

func (caps *capabilities) query(c *call) status {
	set := caps.most
	if c.mod&1 != 0 {
		set = caps.now
	}
	if queryHcaCapInOtherFunction.is(c.in) || c.mod>>1 > capTlpEmulation {
		return statusBadParamErr
	}
	copy(queryHcaCapOutCapability.at(c.out), set[int(c.mod>>1)]) // without the type, all is zero
	return statusOk
}

// settable are the fields that SET_HCA_CAP may change. handle_hca_cap of mlx5_core writes all
// others as they are.
var settable = map[int][]field{
	capGeneral: {
		cmdHcaCapPkeyTableSize, cmdHcaCapLogMaxQp, cmdHcaCapCmdifChecksum, cmdHcaCapUar4k, cmdHcaCapLogUarPageSz,
		cmdHcaCapNumVhcaPorts, cmdHcaCapDrainSigerr, cmdHcaCapCacheLine128byte, cmdHcaCapRoce, cmdHcaCapLogMaxCurrentUcList,
	},
	capRoce: {roceCapSwRRoceSrcUdpPort},
}

func (caps *capabilities) set(c *call) status {
	typ := int(c.mod) >> 1
	in, now := setHcaCapInCapability.at(c.in), caps.now[typ]
	if now == nil || setHcaCapInOtherFunction.is(c.in) {
		return statusBadParamErr
	}
	if typ == capAtomic { // the rest is read-only, and zero here
		mode := atomicCapsAtomicReq8bEndiannessMode
		mode.set(now, mode.get(in))
		return statusOk
	}
	changed := bytes.Clone(in)
	for _, f := range settable[typ] {
		f.set(changed, f.get(now))
	}
	if !bytes.Equal(changed, now) {
		return statusBadParamErr
	}
	if typ != capGeneral {
		copy(now, in)
		return statusOk
	}
	log := cmdHcaCapLogUarPageSz.int(in)
	if log > maxLogUARPage || log > 0 && !cmdHcaCapUar4k.is(in) { // the latter would take a page for each UAR
		return statusBadParamErr
	}
	copy(now, in)
	cmdHcaCapNumOfUarsPerPage.set(now, 1<<log)
	return statusOk
}

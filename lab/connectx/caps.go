//go:build linux

package connectx

import (
	"bytes"
	"slices"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// capabilities are what QUERY_HCA_CAP tells. They decide what the drivers use: what is not set
// here is not implemented.
type capabilities struct {
	most, now map[int][]byte // by type
}

const capabilitySize = 0x1000

func (c *capabilities) int(typ int, f ifc.Field) int { return f.Int(c.now[typ]) }

// uarsPerPage returns how many UARs a page of the driver's processor has, as SET_HCA_CAP has told.
func (c *capabilities) uarsPerPage() uint32 {
	return uint32(c.int(ifc.CapGeneral, ifc.CmdHcaCapNumOfUarsPerPage))
}

func (c *capabilities) init(cfg Config) {
	c.most, c.now = map[int][]byte{}, map[int][]byte{}
	sets := map[int][]capability{ifc.CapGeneral: generalCaps, ifc.CapAtomic: atomicCaps}
	if !cfg.InfiniBand { // the port type 0 is MLX5_CAP_PORT_TYPE_IB
		sets[ifc.CapGeneral] = slices.Concat(generalCaps, ethernetCaps)
		sets[ifc.CapEthernetOffloads], sets[ifc.CapRoce] = offloadCaps, roceCaps
		c.most[ifc.CapFlowTable] = flowTableCaps()
	}
	for typ, list := range sets {
		c.most[typ] = make([]byte, capabilitySize)
		for _, v := range list {
			v.f.Set(c.most[typ], v.value)
		}
	}
	for typ, b := range c.most {
		c.now[typ] = bytes.Clone(b)
	}
}

type capability struct {
	f     ifc.Field
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
	{ifc.CmdHcaCapVhcaId, 1},
	{ifc.CmdHcaCapLogMaxSrqSz, 15},
	{ifc.CmdHcaCapLogMaxQpSz, 15},
	{ifc.CmdHcaCapLogMaxQp, 18},
	{ifc.CmdHcaCapLogMaxSrq, 16},
	{ifc.CmdHcaCapLogMaxCqSz, 22},
	{ifc.CmdHcaCapLogMaxCq, 18},
	{ifc.CmdHcaCapLogMaxEqSz, 16},
	{ifc.CmdHcaCapLogMaxEq, 6},
	{ifc.CmdHcaCapMaxNumEqs, maxEQs},
	{ifc.CmdHcaCapLogMaxMkey, 20},
	{ifc.CmdHcaCapMaxIndirection, 1},
	{ifc.CmdHcaCapLogMaxMrwSz, 32},
	{ifc.CmdHcaCapLogMaxKlmListSize, logMaxKLMs},
	{ifc.CmdHcaCapLogMaxRaReqQp, 4},
	{ifc.CmdHcaCapLogMaxRaResQp, 4},
	{ifc.CmdHcaCapMaxQpCnt, 64},
	// Which counters mlx5_ib's counters.c offers.
	{ifc.CmdHcaCapOutOfSeqCnt, 1},
	{ifc.CmdHcaCapRetransmissionQCounters, 1},
	{ifc.CmdHcaCapEnhancedErrorQCounters, 1},
	{ifc.CmdHcaCapLocalCaAckDelay, 16},
	{ifc.CmdHcaCapNumPorts, 1},
	{ifc.CmdHcaCapNativePortNum, 1},
	{ifc.CmdHcaCapLogMaxMsg, 30},
	// CQEs with the user index, by which libmlx5 finds the QP.
	{ifc.CmdHcaCapCqeVersion, 1},
	{ifc.CmdHcaCapCompactAddressVector, 1},
	// Offsets of more than 16 bits in UMR requests (mlx5_ib's umr.h, mlx5r_umr_can_load_pas).
	{ifc.CmdHcaCapUmrExtendedTranslationOffset, 1},
	{ifc.CmdHcaCapDrainSigerr, 1},
	{ifc.CmdHcaCapCqResize, 1},
	{ifc.CmdHcaCapCqModeration, 1},
	{ifc.CmdHcaCapCqPeriodModeModify, 1},
	{ifc.CmdHcaCapBlockLbMc, 1},
	{ifc.CmdHcaCapImaicl, 1},
	{ifc.CmdHcaCapQkv, 1},
	{ifc.CmdHcaCapPkv, 1},
	{ifc.CmdHcaCapRc, 1},
	{ifc.CmdHcaCapUc, 1},
	{ifc.CmdHcaCapUd, 1},
	// Without XRC mlx5_ib does not come up: mlx5_ib_dev_res_init.
	{ifc.CmdHcaCapXrc, 1},
	{ifc.CmdHcaCapLogMaxXrcd, 16},
	// UARs of 4 KiB whatever the pages of the processor: handle_hca_cap asks for them.
	{ifc.CmdHcaCapUar4k, 1},
	{ifc.CmdHcaCapUarSz, 5}, // MiB of the BAR, as a power of 2
	{ifc.CmdHcaCapLogPgSz, 12},
	{ifc.CmdHcaCapNumOfUarsPerPage, 1},
	{ifc.CmdHcaCapBf, 1},
	{ifc.CmdHcaCapLogBfRegSize, logRegister},
	// For mlx5_try_fast_unload, when the machine shuts down.
	{ifc.CmdHcaCapForceTeardown, 1},
	{ifc.CmdHcaCapMaxWqeSzSq, maxSendWQE},
	{ifc.CmdHcaCapMaxWqeSzRq, 512},
	{ifc.CmdHcaCapMaxQpMcg, 64},
	{ifc.CmdHcaCapLogMaxMcg, 13},
	// There is one, which mlx5e takes, so that programs get none of their own, and no raw packet
	// QPs. Those would need flows to receive.
	{ifc.CmdHcaCapLogMaxTransportDomain, 0},
	{ifc.CmdHcaCapLogMaxPd, 16},
	// Of the timer, which counts nanoseconds: mlx5_core's lib/clock.c, and timestamps of
	// completions.
	{ifc.CmdHcaCapDeviceFrequencyKhz, 1000000},
	{ifc.CmdHcaCapDeviceFrequencyMhz, 1000},
	{ifc.CmdHcaCapAtomic, 1},
	{ifc.CmdHcaCapMaxSglForOptimizedPerformance, 4},
	{ifc.CmdHcaCapEthVirt, 1},
	{ifc.CmdHcaCapIbVirt, 1},
	{ifc.CmdHcaCapVportCounters, 1},
}

var ethernetCaps = []capability{
	{ifc.CmdHcaCapPortType, 1}, // MLX5_CAP_PORT_TYPE_ETH
	{ifc.CmdHcaCapRoce, 1},
	{ifc.CmdHcaCapEthNetOffloads, 1},
	{ifc.CmdHcaCapNicFlowTable, 1},
	{ifc.CmdHcaCapMaxTc, 8},
	{ifc.CmdHcaCapLogMaxRq, 16},
	{ifc.CmdHcaCapLogMaxSq, 16},
	{ifc.CmdHcaCapLogMaxTir, 16},
	{ifc.CmdHcaCapLogMaxTis, 16},
	{ifc.CmdHcaCapLogMaxRqt, logRQTs},
	{ifc.CmdHcaCapLogMaxRqtSize, 11},
	{ifc.CmdHcaCapLogMaxRmp, 16},
	// The receive queues of mlx5e without striding.
	{ifc.CmdHcaCapBasicCyclicRcvWqe, 1},
	{ifc.CmdHcaCapLogMaxTisPerSq, 3},
	{ifc.CmdHcaCapLogMaxStrideSzRq, 10},
	{ifc.CmdHcaCapLogMaxStrideSzSq, 10},
	{ifc.CmdHcaCapLogMinStrideSzRq, 4},
	{ifc.CmdHcaCapLogMinStrideSzSq, 4},
	{ifc.CmdHcaCapLogMaxWqSz, 15},
	{ifc.CmdHcaCapLogMaxVlanList, 9},
	{ifc.CmdHcaCapLogMaxCurrentMcList, 11},
	{ifc.CmdHcaCapLogMaxCurrentUcList, 7},
	{ifc.CmdHcaCapDisableLocalLbUc, 1},
	{ifc.CmdHcaCapDisableLocalLbMc, 1},
	{ifc.CmdHcaCapMaxFlowCounter150, 1024},
}

var offloadCaps = []capability{
	{ifc.PerProtocolNetworkingOffloadCapsCsumCap, 1},
	{ifc.PerProtocolNetworkingOffloadCapsVlanCap, 1},
	{ifc.PerProtocolNetworkingOffloadCapsMaxLsoCap, logMaxLSO},
	{ifc.PerProtocolNetworkingOffloadCapsRssIndTblCap, 8},
	{ifc.PerProtocolNetworkingOffloadCapsSelfLbEnModifiable, 1},
	{ifc.PerProtocolNetworkingOffloadCapsWqeVlanInsert, 1},
	// MLX5_CAP_INLINE_MODE_NOT_REQUIRED: a frame's headers need not be in the request.
	{ifc.PerProtocolNetworkingOffloadCapsWqeInlineMode, 2},
}

// With other versions than RoCE v2, and both types of addresses, mlx5_ib registers the port
// without RoCE, and the kernel warns.
var roceCaps = []capability{
	{ifc.RoceCapL3Type, 6},      // MLX5_ROCE_L3_TYPE_IPV4_CAP and _IPV6_CAP
	{ifc.RoceCapRoceVersion, 4}, // MLX5_ROCE_VERSION_2_CAP
	{ifc.RoceCapRRoceDestUdpPort, 4791},
	{ifc.RoceCapRRoceMinSrcUdpPort, 0xc000},
	{ifc.RoceCapRRoceMaxSrcUdpPort, 0xffff},
	{ifc.RoceCapRoceAddressTableSize, roceAddresses},
}

var atomicCaps = []capability{
	{ifc.AtomicCapsAtomicOperations, 3}, // compare and swap, fetch and add
	{ifc.AtomicCapsAtomicSizeQp, 8},
	{ifc.AtomicCapsSupportedAtomicReq8bEndiannessMode1, 1},
}

// flowTableCaps lets mlx5e make its tables, with matches on all fields.
func flowTableCaps() []byte {
	b := make([]byte, capabilitySize)
	for _, dir := range []ifc.Field{ifc.FlowTableNicCapFlowTablePropertiesNicReceive, ifc.FlowTableNicCapFlowTablePropertiesNicTransmit} {
		p := dir.At(b)
		for _, v := range []capability{
			{ifc.FlowTablePropLayoutFtSupport, 1},
			{ifc.FlowTablePropLayoutFlowModifyEn, 1},
			{ifc.FlowTablePropLayoutModifyRoot, 1},
			{ifc.FlowTablePropLayoutIdentifiedMissTableMode, 1},
			{ifc.FlowTablePropLayoutFlowTableModify, 1},
			{ifc.FlowTablePropLayoutFlowCounter, 1},
			{ifc.FlowTablePropLayoutLogMaxFtSize, logTableSize},
			{ifc.FlowTablePropLayoutMaxFtLevel, 64},
			{ifc.FlowTablePropLayoutLogMaxFtNum, logTables},
			{ifc.FlowTablePropLayoutLogMaxDestination, 12},
			{ifc.FlowTablePropLayoutLogMaxFlow, logFlows},
		} {
			v.f.Set(p, v.value)
		}
	}
	p := ifc.FlowTableNicCapFlowTablePropertiesNicReceive.At(b)
	for _, f := range []ifc.Field{ifc.FlowTablePropLayoutFtFieldSupport, ifc.FlowTablePropLayoutFtFieldBitmaskSupport} {
		known := f.At(p)
		for i := range known {
			known[i] = 0xff
		}
		for _, r := range ifc.FlowTableFieldsSupportedReserved {
			r.Clear(known)
		}
	}
	return b
}

var capCommands = map[uint16]func(*capabilities, *call) ifc.Status{
	ifc.OpQueryHcaCap: (*capabilities).query,
	ifc.OpSetHcaCap:   (*capabilities).set,
}

func (caps *capabilities) query(c *call) ifc.Status {
	set := caps.most
	if c.mod&1 != 0 {
		set = caps.now
	}
	if ifc.QueryHcaCapInOtherFunction.Is(c.in) || c.mod>>1 > ifc.CapTlpEmulation {
		return ifc.StatusBadParamErr
	}
	copy(ifc.QueryHcaCapOutCapability.At(c.out), set[int(c.mod>>1)]) // without the type, all is zero
	return ifc.StatusOk
}

// settable are the fields that SET_HCA_CAP may change. handle_hca_cap of mlx5_core writes all
// others as they are.
var settable = map[int][]ifc.Field{
	ifc.CapGeneral: {
		ifc.CmdHcaCapPkeyTableSize, ifc.CmdHcaCapLogMaxQp, ifc.CmdHcaCapCmdifChecksum, ifc.CmdHcaCapUar4k, ifc.CmdHcaCapLogUarPageSz,
		ifc.CmdHcaCapNumVhcaPorts, ifc.CmdHcaCapDrainSigerr, ifc.CmdHcaCapCacheLine128byte, ifc.CmdHcaCapRoce, ifc.CmdHcaCapLogMaxCurrentUcList,
	},
	ifc.CapRoce: {ifc.RoceCapSwRRoceSrcUdpPort},
}

func (caps *capabilities) set(c *call) ifc.Status {
	typ := int(c.mod) >> 1
	in, now := ifc.SetHcaCapInCapability.At(c.in), caps.now[typ]
	if now == nil || ifc.SetHcaCapInOtherFunction.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	if typ == ifc.CapAtomic { // the rest is read-only, and zero here
		ifc.AtomicCapsAtomicReq8bEndiannessMode.Copy(now, in)
		return ifc.StatusOk
	}
	changed := bytes.Clone(in)
	for _, f := range settable[typ] {
		f.Copy(changed, now)
	}
	if !bytes.Equal(changed, now) {
		return ifc.StatusBadParamErr
	}
	if typ != ifc.CapGeneral {
		copy(now, in)
		return ifc.StatusOk
	}
	log := ifc.CmdHcaCapLogUarPageSz.Int(in)
	if log > maxLogUARPage || log > 0 && !ifc.CmdHcaCapUar4k.Is(in) { // the latter would take a page for each UAR
		return ifc.StatusBadParamErr
	}
	copy(now, in)
	ifc.CmdHcaCapNumOfUarsPerPage.Set(now, 1<<log)
	return ifc.StatusOk
}

//go:build linux

package connectx

import (
	"bytes"
	"slices"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// capabilities are the answers to QUERY_HCA_CAP. They decide what the drivers use: the adapter does
// not implement a feature whose capability is not set here.
type capabilities struct {
	most, now map[int][]byte // by type: those that the adapter has, and those that are in use
}

const capabilitySize = 0x1000

func (c *capabilities) int(typ int, f ifc.Field) int { return f.Int(c.now[typ]) }

// uarsPerPage returns the number of UARs in a page of the driver's processor, as SET_HCA_CAP set it.
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
	c.most[ifc.CapOdp] = pagingCaps()
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

// Limits that the capabilities announce and the parts of the adapter enforce.
const (
	maxEQs        = 64
	maxSendWQE    = 1024 // bytes of a send request: 16 blocks
	logRegister   = 9    // of BlueFlame, both halves
	logUARs       = 13   // pages of the BAR
	maxLogUARPage = 4    // log_uar_page_sz: pages of 64 KiB
	logMaxKLMs    = 16   // parts of a key of keys: the engine gets all of them again when the key changes
	logMaxLSO     = 16   // bytes of a request that is cut into segments
	logRQTs       = 10   // mlx5e makes some for each of its queues
	roceAddresses = 64   // GIDs

	// Of flow tables: indexes in each, tables, and entries in each.
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
	{ifc.CmdHcaCapDct, 1},
	{ifc.CmdHcaCapLogMaxRaReqDc, 4},
	{ifc.CmdHcaCapLogMaxRaResDc, 4},
	// Page faults, and what implicit regions need besides (odp.c, internal_fill_odp_caps).
	{ifc.CmdHcaCapPg, 1},
	{ifc.CmdHcaCapFixedBufferSize, 1},
	{ifc.CmdHcaCapNullMkey, 1},
	{ifc.CmdHcaCapMaxQpCnt, 64},
	// mlx5_ib offers counters of QUERY_Q_COUNTER by these (counters.c, mlx5_ib_fill_counters).
	{ifc.CmdHcaCapOutOfSeqCnt, 1},
	{ifc.CmdHcaCapRetransmissionQCounters, 1},
	{ifc.CmdHcaCapEnhancedErrorQCounters, 1},
	{ifc.CmdHcaCapLocalCaAckDelay, 16},
	{ifc.CmdHcaCapNumPorts, 1},
	{ifc.CmdHcaCapNativePortNum, 1},
	{ifc.CmdHcaCapLogMaxMsg, 30},
	// Version 1 has the user index, by which libmlx5 finds the QP of a CQE.
	{ifc.CmdHcaCapCqeVersion, 1},
	{ifc.CmdHcaCapCompactAddressVector, 1},
	// Offsets of more than 16 bits in UMR requests, without which mlx5_ib loads no list of pages by
	// them (umr.h, mlx5r_umr_can_load_pas).
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
	// Without XRC mlx5_ib does not come up: mlx5_ib_dev_res_init needs two XRC domains.
	{ifc.CmdHcaCapXrc, 1},
	{ifc.CmdHcaCapLogMaxXrcd, 16},
	// UARs of 4 KiB on processors with larger pages (handle_hca_cap).
	{ifc.CmdHcaCapUar4k, 1},
	{ifc.CmdHcaCapUarSz, 5}, // MiB of the BAR, as a power of 2
	{ifc.CmdHcaCapLogPgSz, 12},
	{ifc.CmdHcaCapNumOfUarsPerPage, 1},
	{ifc.CmdHcaCapBf, 1},
	{ifc.CmdHcaCapEceSupport, 1},
	{ifc.CmdHcaCapLogBfRegSize, logRegister},
	// For mlx5_try_fast_unload, when the machine shuts down.
	{ifc.CmdHcaCapForceTeardown, 1},
	{ifc.CmdHcaCapMaxWqeSzSq, maxSendWQE},
	{ifc.CmdHcaCapMaxWqeSzRq, 512},
	{ifc.CmdHcaCapMaxQpMcg, 64},
	{ifc.CmdHcaCapLogMaxMcg, 13},
	// 0 makes mlx5_ib give programs no transport domains (mlx5_ib_alloc_transport_domain): raw packet
	// QPs would need flows to receive. The only one is mlx5e's.
	{ifc.CmdHcaCapLogMaxTransportDomain, 0},
	{ifc.CmdHcaCapLogMaxPd, 16},
	// The timer and the timestamps of completions count nanoseconds (mlx5_core's lib/clock.c).
	{ifc.CmdHcaCapDeviceFrequencyKhz, 1000000},
	{ifc.CmdHcaCapDeviceFrequencyMhz, 1000},
	{ifc.CmdHcaCapSqTsFormat, bothTimestamps},
	{ifc.CmdHcaCapRqTsFormat, bothTimestamps},
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
	// mlx5e's receive queues without striding.
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

// bothTimestamps is MLX5_TIMESTAMP_FORMAT_CAP_FREE_RUNNING_AND_REAL_TIME. Of InfiniBand, which has
// no capabilities of RoCE, mlx5_ib has no real-time timestamps (get_qp_ts_format).
const bothTimestamps = 2

// roceCaps has RoCE v2 with both types of addresses: with less, mlx5_ib registers the port without
// RoCE (get_core_cap_flags), and the kernel warns.
var roceCaps = []capability{
	{ifc.RoceCapL3Type, 6},      // MLX5_ROCE_L3_TYPE_IPV4_CAP and _IPV6_CAP
	{ifc.RoceCapRoceVersion, 4}, // MLX5_ROCE_VERSION_2_CAP
	{ifc.RoceCapRRoceDestUdpPort, 4791},
	{ifc.RoceCapRRoceMinSrcUdpPort, 0xc000},
	{ifc.RoceCapRRoceMaxSrcUdpPort, 0xffff},
	{ifc.RoceCapRoceAddressTableSize, roceAddresses},
	{ifc.RoceCapQpTsFormat, bothTimestamps},
}

var atomicCaps = []capability{
	{ifc.AtomicCapsAtomicOperations, 3}, // compare and swap, fetch and add
	{ifc.AtomicCapsAtomicSizeQp, 8},
	{ifc.AtomicCapsAtomicSizeDc, 8},
	{ifc.AtomicCapsSupportedAtomicReq8bEndiannessMode1, 1},
}

// pagingCaps has the operations that may find pages missing: all of RC and DC. Of UD only sends have page
// faults: a datagram that finds no memory is lost.
func pagingCaps() []byte {
	b := make([]byte, capabilitySize)
	scheme := ifc.OdpCapTransportPageFaultSchemeCap.At(b)
	for _, transport := range []ifc.Field{ifc.OdpSchemeCapRcOdpCaps, ifc.OdpSchemeCapDcOdpCaps} {
		for _, operation := range []ifc.Field{
			ifc.OdpPerTransportServiceCapSend, ifc.OdpPerTransportServiceCapReceive, ifc.OdpPerTransportServiceCapSrqReceive,
			ifc.OdpPerTransportServiceCapWrite, ifc.OdpPerTransportServiceCapRead, ifc.OdpPerTransportServiceCapAtomic,
		} {
			operation.Set(transport.At(scheme), 1)
		}
	}
	ifc.OdpPerTransportServiceCapSend.Set(ifc.OdpSchemeCapUdOdpCaps.At(scheme), 1)
	return b
}

// flowTableCaps lets mlx5e create its tables, with matches on all fields that are not reserved.
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
	copy(ifc.QueryHcaCapOutCapability.At(c.out), set[int(c.mod>>1)]) // an unknown type has zeros
	return ifc.StatusOk
}

// settable are the fields that SET_HCA_CAP may change. The driver writes back all others as it has
// read them (mlx5_core's handle_hca_cap).
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
	if typ == ifc.CapAtomic { // the driver writes zeros to the other fields, which are read-only (handle_hca_cap_atomic)
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
	if log > maxLogUARPage || log > 0 && !ifc.CmdHcaCapUar4k.Is(in) { // without uar_4k, each UAR takes a page
		return ifc.StatusBadParamErr
	}
	copy(now, in)
	ifc.CmdHcaCapNumOfUarsPerPage.Set(now, 1<<log)
	return ifc.StatusOk
}

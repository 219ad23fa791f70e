// Package attr converts attributes between the kernel's structures and package verbs', for packages
// uverbs and cm, and for what plays the kernel.
package attr

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// Dest returns the structure of an address vector in commands on QPs.
func Dest(av *verbs.AddressVector) abi.IbUverbsQpDest {
	return abi.IbUverbsQpDest{
		IsGlobal: bit(av.Global), Dgid: av.DGID, FlowLabel: av.FlowLabel, Dlid: av.DLID, SgidIndex: av.SGIDIndex,
		HopLimit: av.HopLimit, TrafficClass: av.TrafficClass, Sl: av.SL,
		SrcPathBits: av.SrcPathBits, StaticRate: uint8(av.StaticRate), PortNum: av.Port,
	}
}

// OfDest returns the address vector in the answer of a query.
func OfDest(d *abi.IbUverbsQpDest) verbs.AddressVector {
	return verbs.AddressVector{
		Global: d.IsGlobal != 0, DGID: d.Dgid, FlowLabel: d.FlowLabel, SGIDIndex: d.SgidIndex,
		HopLimit: d.HopLimit, TrafficClass: d.TrafficClass, DLID: d.Dlid, SL: d.Sl,
		SrcPathBits: d.SrcPathBits, StaticRate: verbs.Rate(d.StaticRate), Port: d.PortNum,
	}
}

// AH returns the structure of an address vector in commands on address handles, and in events of
// rdma_cm.
func AH(av *verbs.AddressVector) abi.IbUverbsAhAttr {
	return abi.IbUverbsAhAttr{
		IsGlobal: bit(av.Global), Grh: abi.IbUverbsGlobalRoute{
			Dgid: av.DGID, FlowLabel: av.FlowLabel, SgidIndex: av.SGIDIndex, HopLimit: av.HopLimit, TrafficClass: av.TrafficClass,
		},
		Dlid: av.DLID, Sl: av.SL, SrcPathBits: av.SrcPathBits, StaticRate: uint8(av.StaticRate), PortNum: av.Port,
	}
}

// OfAH returns the address vector in an event of rdma_cm.
func OfAH(a *abi.IbUverbsAhAttr) verbs.AddressVector {
	return verbs.AddressVector{
		Global: a.IsGlobal != 0, DGID: a.Grh.Dgid, FlowLabel: a.Grh.FlowLabel, SGIDIndex: a.Grh.SgidIndex,
		HopLimit: a.Grh.HopLimit, TrafficClass: a.Grh.TrafficClass, DLID: a.Dlid, SL: a.Sl,
		SrcPathBits: a.SrcPathBits, StaticRate: verbs.Rate(a.StaticRate), Port: a.PortNum,
	}
}

// OfQP returns the attributes in an answer of rdma_cm, and the mask of those that are set.
func OfQP(a *abi.IbUverbsQpAttr) (verbs.QPAttr, verbs.QPAttrMask) {
	return verbs.QPAttr{
		State: verbs.QPState(a.QpState), CurState: verbs.QPState(a.CurQpState), PathMTU: verbs.MTU(a.PathMtu),
		PathMigState: verbs.PathMigState(a.PathMigState), QKey: a.Qkey, RQPSN: a.RqPsn, SQPSN: a.SqPsn,
		DestQPNum: a.DestQpNum, Access: verbs.Access(a.QpAccessFlags),
		AV: OfAH(&a.AhAttr), AltAV: OfAH(&a.AltAhAttr),
		PKeyIndex: a.PkeyIndex, AltPKeyIndex: a.AltPkeyIndex, SQDAsyncNotify: a.EnSqdAsyncNotify != 0,
		SQDraining: a.SqDraining != 0, MaxRDAtomic: a.MaxRdAtomic, MaxDestRDAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRnrTimer, Port: a.PortNum, AltPort: a.AltPortNum, Timeout: a.Timeout,
		AltTimeout: a.AltTimeout, RetryCount: a.RetryCnt, RNRRetry: a.RnrRetry,
	}, verbs.QPAttrMask(a.QpAttrMask)
}

// OfGUID returns the GUID in an answer, where it is in network byte order.
func OfGUID(v uint64) verbs.GUID { return verbs.GUID(mmap.Bytes(&v)) }

// Device returns the answer to a query of a device with the attributes that software devices have.
func Device(a verbs.DeviceAttr) abi.IbUverbsExQueryDeviceResp {
	guid := func(g verbs.GUID) uint64 { return binary.NativeEndian.Uint64(g[:]) }
	return abi.IbUverbsExQueryDeviceResp{
		Base: abi.IbUverbsQueryDeviceResp{
			FwVer: a.FirmwareVersion, NodeGuid: guid(a.NodeGUID), SysImageGuid: guid(a.SysImageGUID),
			MaxMrSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap,
			VendorId: a.VendorID, VendorPartId: a.VendorPartID, HwVer: a.HWVersion,
			MaxQp: uint32(a.MaxQP), MaxQpWr: uint32(a.MaxQPWR), DeviceCapFlags: uint32(a.CapFlags),
			MaxSge: uint32(a.MaxSGE), MaxSgeRd: uint32(a.MaxSGERead), MaxCq: uint32(a.MaxCQ), MaxCqe: uint32(a.MaxCQE),
			MaxMr: uint32(a.MaxMR), MaxPd: uint32(a.MaxPD), MaxMw: uint32(a.MaxMW),
			MaxQpRdAtom: uint32(a.MaxQPRDAtomic), MaxResRdAtom: uint32(a.MaxResRDAtomic),
			MaxQpInitRdAtom: uint32(a.MaxQPInitRDAtomic), AtomicCap: uint32(a.AtomicCap),
			MaxMcastGrp: uint32(a.MaxMcastGroup), MaxMcastQpAttach: uint32(a.MaxMcastQPAttach),
			MaxTotalMcastQpAttach: uint32(a.MaxTotalMcastQPAttach),
			MaxAh:                 uint32(a.MaxAH), MaxSrq: uint32(a.MaxSRQ), MaxSrqWr: uint32(a.MaxSRQWR), MaxSrqSge: uint32(a.MaxSRQSGE),
			MaxPkeys: uint16(a.MaxPKeys), LocalCaAckDelay: a.LocalCAAckDelay, PhysPortCnt: uint8(a.Ports),
		},
		DeviceCapFlagsEx: a.CapFlags,
	}
}

// Port returns the answer to a query of a port.
func Port(p verbs.PortAttr) abi.IbUverbsQueryPortRespEx {
	const maxSpeed = 128 // IB_SPEED_NDR
	return abi.IbUverbsQueryPortRespEx{
		LegacyResp: abi.IbUverbsQueryPortResp{
			PortCapFlags: p.CapFlags, MaxMsgSz: uint32(p.MaxMessage), BadPkeyCntr: p.BadPKeys, QkeyViolCntr: p.QKeyViolations,
			GidTblLen: uint32(p.GIDs), PkeyTblLen: uint16(p.PKeys), Lid: p.LID, SmLid: p.SMLID,
			State: uint8(p.State), MaxMtu: uint8(p.MaxMTU), ActiveMtu: uint8(p.ActiveMTU), Lmc: p.LMC,
			MaxVlNum: p.MaxVLs, SmSl: p.SMSL, SubnetTimeout: p.SubnetTimeout, InitTypeReply: p.InitTypeReply,
			ActiveWidth: uint8(p.ActiveWidth), ActiveSpeed: uint8(min(p.ActiveSpeed, maxSpeed)),
			PhysState: uint8(p.PhysState), LinkLayer: uint8(p.LinkLayer), Flags: p.Flags,
		},
		PortCapFlags2: p.CapFlags2, ActiveSpeedEx: uint32(p.ActiveSpeed),
	}
}

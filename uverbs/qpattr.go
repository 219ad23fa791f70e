package uverbs

import (
	"fmt"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// QPAttr is the attributes of a QP (ibv_modify_qp(3), ibv_query_qp(3)).
type QPAttr struct {
	State           QPState
	CurState        QPState
	PathMTU         MTU
	PathMigState    uint8 // enum ib_mig_state
	QKey            uint32
	RQPSN, SQPSN    uint32 // 24 bits
	DestQPNum       uint32 // 24 bits
	Access          Access // what the peer may do
	AV, AltAV       AddressVector
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	SQDAsyncNotify  bool
	SQDraining      bool // query only
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8 // 5 bits, IBTA table 45; 12 is 0.64 ms
	Port, AltPort   uint8
	Timeout         uint8 // 4.096 us * 2^Timeout; 0 is for ever
	AltTimeout      uint8
	RetryCount      uint8 // 0..7
	RNRRetry        uint8 // 0..6, 7 is for ever

	Cap       QPCap // query only
	SignalAll bool  // query only
}

// AddressVector is the path to a peer.
type AddressVector struct {
	// DGID and the fields up to TrafficClass are the global route, which RoCE
	// needs; Global says whether there is one.
	Global       bool
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8

	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  Rate
	Port        uint8
}

// QPAttrMask says which attributes of a [QPAttr] are meant.
type QPAttrMask uint32

const (
	MaskState QPAttrMask = 1 << iota
	MaskCurState
	MaskSQDAsyncNotify
	MaskAccess
	MaskPKeyIndex
	MaskPort
	MaskQKey
	MaskAV
	MaskPathMTU
	MaskTimeout
	MaskRetryCount
	MaskRNRRetry
	MaskRQPSN
	MaskMaxRDAtomic
	MaskAltPath
	MaskMinRNRTimer
	MaskSQPSN
	MaskMaxDestRDAtomic
	MaskPathMigState
	MaskCap
	MaskDestQPNum
)

// MTU is a path MTU as InfiniBand codes it: 1 is 256 bytes, 5 is 4096.
type MTU uint8

// Bytes is the MTU in bytes, 0 if it is invalid.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprintf("%d (%d)", m.Bytes(), uint8(m)) }

func (av *AddressVector) dest() abi.IbUverbsQpDest {
	d := abi.IbUverbsQpDest{
		Dgid: av.DGID, FlowLabel: av.FlowLabel, Dlid: av.DLID, SgidIndex: av.SGIDIndex,
		HopLimit: av.HopLimit, TrafficClass: av.TrafficClass, Sl: av.SL,
		SrcPathBits: av.SrcPathBits, StaticRate: uint8(av.StaticRate), PortNum: av.Port,
	}
	if av.Global {
		d.IsGlobal = 1
	}
	return d
}

func vectorOfDest(d *abi.IbUverbsQpDest) AddressVector {
	return AddressVector{
		Global: d.IsGlobal != 0, DGID: d.Dgid, FlowLabel: d.FlowLabel, SGIDIndex: d.SgidIndex,
		HopLimit: d.HopLimit, TrafficClass: d.TrafficClass, DLID: d.Dlid, SL: d.Sl,
		SrcPathBits: d.SrcPathBits, StaticRate: Rate(d.StaticRate), Port: d.PortNum,
	}
}

func vectorOfAH(a *abi.IbUverbsAhAttr) AddressVector {
	return AddressVector{
		Global: a.IsGlobal != 0, DGID: a.Grh.Dgid, FlowLabel: a.Grh.FlowLabel, SGIDIndex: a.Grh.SgidIndex,
		HopLimit: a.Grh.HopLimit, TrafficClass: a.Grh.TrafficClass, DLID: a.Dlid, SL: a.Sl,
		SrcPathBits: a.SrcPathBits, StaticRate: Rate(a.StaticRate), Port: a.PortNum,
	}
}

// AddressVectorFromABI converts one as rdma_cm's events carry it.
func AddressVectorFromABI(a *abi.IbUverbsAhAttr) AddressVector { return vectorOfAH(a) }

// QPAttrFromABI converts attributes as rdma_cm's INIT_QP_ATTR returns them.
func QPAttrFromABI(a *abi.IbUverbsQpAttr) (QPAttr, QPAttrMask) {
	return QPAttr{
		State: QPState(a.QpState), CurState: QPState(a.CurQpState), PathMTU: MTU(a.PathMtu),
		PathMigState: uint8(a.PathMigState), QKey: a.Qkey, RQPSN: a.RqPsn, SQPSN: a.SqPsn,
		DestQPNum: a.DestQpNum, Access: Access(a.QpAccessFlags),
		AV: vectorOfAH(&a.AhAttr), AltAV: vectorOfAH(&a.AltAhAttr),
		PKeyIndex: a.PkeyIndex, AltPKeyIndex: a.AltPkeyIndex, SQDAsyncNotify: a.EnSqdAsyncNotify != 0,
		SQDraining: a.SqDraining != 0, MaxRDAtomic: a.MaxRdAtomic, MaxDestRDAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRnrTimer, Port: a.PortNum, AltPort: a.AltPortNum, Timeout: a.Timeout,
		AltTimeout: a.AltTimeout, RetryCount: a.RetryCnt, RNRRetry: a.RnrRetry,
	}, QPAttrMask(a.QpAttrMask)
}

// Modify changes the attributes that mask names; with [MaskState] it moves the
// QP to another state (ibv_modify_qp(3) has the table of what each transition
// needs). Moved back to RESET, a QP forgets its requests.
func (q *QP) Modify(a QPAttr, mask QPAttrMask) error {
	op := "modify"
	if mask&MaskState != 0 {
		op = modifyTo[min(int(a.State), len(modifyTo)-1)]
	}
	if err := q.obj.enter(op); err != nil {
		return err
	}
	defer q.obj.exit()
	req := abi.IbUverbsModifyQp{
		Dest: a.AV.dest(), AltDest: a.AltAV.dest(),
		QpHandle: q.handle, AttrMask: uint32(mask),
		Qkey: a.QKey, RqPsn: a.RQPSN, SqPsn: a.SQPSN, DestQpNum: a.DestQPNum,
		QpAccessFlags: uint32(a.Access), PkeyIndex: a.PKeyIndex, AltPkeyIndex: a.AltPKeyIndex,
		QpState: uint8(a.State), CurQpState: uint8(a.CurState), PathMtu: uint8(a.PathMTU),
		PathMigState: a.PathMigState, MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic,
		MinRnrTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout, RetryCnt: a.RetryCount,
		RnrRetry: a.RNRRetry, AltPortNum: a.AltPort, AltTimeout: a.AltTimeout,
	}
	if a.SQDAsyncNotify {
		req.EnSqdAsyncNotify = 1
	}
	moved := false
	if mask&MaskState != 0 { // the queues hold still while it changes, and know it after
		if q.recv != nil {
			q.recv.Suspend()
			defer func() { q.recv.Settle(a.State, moved) }()
		}
		q.send.Suspend()
		defer func() { q.send.Settle(a.State, moved) }()
	}
	if err := q.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_MODIFY_QP, mmap.Bytes(&req), nil, nil, nil); err != nil {
		return q.obj.fail(op, err)
	}
	moved = true
	return nil
}

// modifyTo is what changes of state are called, the last all that there is not.
var modifyTo = func() (names [StateErr + 2]string) {
	for s := range names {
		names[s] = "modify to " + QPState(s).String()
	}
	return names
}()

// Query returns all attributes (ibv_query_qp(3)).
func (q *QP) Query() (QPAttr, error) {
	const op = "query"
	if err := q.obj.enter(op); err != nil {
		return QPAttr{}, err
	}
	defer q.obj.exit()
	req := abi.IbUverbsQueryQp{QpHandle: q.handle, AttrMask: uint32(MaskDestQPNum<<1 - 1)}
	var r abi.IbUverbsQueryQpResp
	if err := q.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_QUERY_QP, mmap.Bytes(&req), mmap.Bytes(&r), nil, nil); err != nil {
		return QPAttr{}, q.obj.fail(op, err)
	}
	return QPAttr{
		State: QPState(r.QpState), CurState: QPState(r.CurQpState), PathMTU: MTU(r.PathMtu),
		PathMigState: r.PathMigState, QKey: r.Qkey, RQPSN: r.RqPsn, SQPSN: r.SqPsn,
		DestQPNum: r.DestQpNum, Access: Access(r.QpAccessFlags),
		AV: vectorOfDest(&r.Dest), AltAV: vectorOfDest(&r.AltDest),
		PKeyIndex: r.PkeyIndex, AltPKeyIndex: r.AltPkeyIndex, SQDraining: r.SqDraining != 0,
		MaxRDAtomic: r.MaxRdAtomic, MaxDestRDAtomic: r.MaxDestRdAtomic, MinRNRTimer: r.MinRnrTimer,
		Port: r.PortNum, AltPort: r.AltPortNum, Timeout: r.Timeout, AltTimeout: r.AltTimeout,
		RetryCount: r.RetryCnt, RNRRetry: r.RnrRetry,
		Cap: QPCap{
			MaxSendWR: r.MaxSendWr, MaxRecvWR: r.MaxRecvWr,
			MaxSendSGE: r.MaxSendSge, MaxRecvSGE: r.MaxRecvSge, MaxInline: r.MaxInlineData,
		},
		SignalAll: r.SqSigAll != 0,
	}, nil
}

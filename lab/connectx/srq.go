//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

var srqCommands = map[uint16]func(*srqTable, *call) ifc.Status{
	ifc.OpCreateXrcSrq:  (*srqTable).createXRCSRQ,
	ifc.OpDestroyXrcSrq: drop((*srqTable).table, ifc.DestroyXrcSrqInXrcSrqn, (*srq).destroy),
	ifc.OpQueryXrcSrq: on((*srqTable).table, ifc.QueryXrcSrqInXrcSrqn, func(s *srq, c *call) ifc.Status {
		return s.query(ifc.QueryXrcSrqOutXrcSrqContextEntry.At(c.out), ifc.XrcSrqcLwm)
	}),
	ifc.OpArmXrcSrq:  on((*srqTable).table, ifc.ArmXrcSrqInXrcSrqn, func(s *srq, c *call) ifc.Status { return s.arm(ifc.ArmXrcSrqInLwm.Int(c.in)) }),
	ifc.OpCreateRmp:  (*srqTable).createRMP,
	ifc.OpDestroyRmp: drop((*srqTable).table, ifc.DestroyRmpInRmpn, (*srq).destroy),
	ifc.OpQueryRmp: on((*srqTable).table, ifc.QueryRmpInRmpn, func(s *srq, c *call) ifc.Status {
		return s.query(ifc.QueryRmpOutRmpContext.At(c.out), ifc.WqLwm.In(ifc.RmpcWq))
	}),
	ifc.OpModifyRmp: on((*srqTable).table, ifc.ModifyRmpInRmpn, (*srq).modifyRMP),
}

// srqTable has the shared receive queues.
type srqTable struct {
	env  *env
	caps *capabilities
	pds  *objects[*engine.PD]
	eqs  *eqTable
	objects[*srq]

	receives int // entries of all; of commands alone
}

// srq is a shared receive queue: a list that is linked through the first 16 bytes of its entries
// (struct mlx5_wqe_srq_next_seg), as receives are posted again in any order. Word 0 of the doorbell
// record counts the posted receives. The driver makes SRQs as RMPs, or as XRC SRQs, whose XRC domain has
// no meaning here (mlx5_ib's srq_cmd.c, create_srq_split).
type srq struct {
	t       *srqTable
	num     uint32
	e       *engine.SRQ
	context []byte // struct xrc_srqc or rmpc
	ring    ring

	head uint32 // next entry, of refill, under the engine's lock of the SRQ
}

const (
	maxSRQs   = 1 << 16 // log_max_srq
	maxRecvs  = 1 << 18 // of all SRQs: each takes up to 1 KiB here
	srqHeader = 16
	rmpReady  = 1 // rmpc.state
)

func (t *srqTable) createXRCSRQ(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateXrcSrqInXrcSrqContextEntry.At(c.in))
	if ifc.CreateXrcSrqInXrcSrqUmemValid.Is(c.in) || ifc.XrcSrqcWqSignature.Is(ctx) || ifc.XrcSrqcDbrUmemValid.Is(ctx) || ifc.XrcSrqcBasicCyclicRcvWqe.Is(ctx) || ifc.XrcSrqcState.Is(ctx) {
		return ifc.StatusBadParamErr
	}
	record := ifc.XrcSrqcDbRecordAddrH.Get(ctx)<<32 | ifc.XrcSrqcDbRecordAddrL.Get(ctx)<<2
	s := &srq{t: t, context: ctx, ring: ring{Ring: pcidev.Ring{Count: 1 << ifc.XrcSrqcLogXrcSrqSize.Int(ctx), Stride: 16 << ifc.XrcSrqcLogRqStride.Int(ctx)}}}
	return s.create(c, ifc.CreateXrcSrqOutXrcSrqn, ifc.CreateXrcSrqInPas.At(c.in), ifc.XrcSrqcLogPageSize.Int(ctx), ifc.XrcSrqcPageOffset.Int(ctx), record, ifc.XrcSrqcPd.U32(ctx), ifc.XrcSrqcLwm.Int(ctx))
}

func (t *srqTable) createRMP(c *call) ifc.Status {
	const linkedList = 0 // wq.wq_type
	ctx := bytes.Clone(ifc.CreateRmpInCtx.At(c.in))
	wq := ifc.RmpcWq.At(ctx)
	if ifc.WqWqType.Get(wq) != linkedList || ifc.RmpcBasicCyclicRcvWqe.Is(ctx) || ifc.RmpcState.Get(ctx) != rmpReady || ifc.WqWqSignature.Is(wq) ||
		ifc.WqDbrUmemValid.Is(wq) || ifc.WqWqUmemValid.Is(wq) || ifc.WqLogWqSz.Int(wq) > 16 || ifc.WqLogWqStride.Int(wq) > 12 {
		return ifc.StatusBadParamErr
	}
	s := &srq{t: t, context: ctx, ring: ring{Ring: pcidev.Ring{Count: 1 << ifc.WqLogWqSz.Int(wq), Stride: 1 << ifc.WqLogWqStride.Int(wq)}}}
	list := ifc.WqPas.In(ifc.RmpcWq).In(ifc.CreateRmpInCtx)
	return s.create(c, ifc.CreateRmpOutRmpn, list.At(c.in), ifc.WqLogWqPgSz.Int(wq), ifc.WqPageOffset.Int(wq), ifc.WqDbrAddr.Get(wq), ifc.WqPd.U32(wq), ifc.WqLwm.Int(wq))
}

// create maps an SRQ and creates the engine's. The engine's ring holds all receives, as it compares
// their number with the limit.
func (s *srq) create(c *call, num ifc.Field, list []byte, logPage, offset int, record uint64, pdn uint32, limit int) ifc.Status {
	t := s.t
	pd, ok := t.pds.Get(pdn)
	if !ok {
		return ifc.StatusBadResErr
	}
	// An entry has its header and at least one data segment.
	if s.ring.Stride < 2*srqHeader || s.ring.Count > 1<<t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxSrqSz) || limit > int(s.ring.Count) {
		return ifc.StatusBadParamErr
	}
	if t.receives+int(s.ring.Count) > maxRecvs {
		return ifc.StatusNoResErr
	}
	if st := t.env.mapRing(&s.ring, list, logPage, offset, record); st != ifc.StatusOk {
		return st
	}
	st, err := ifc.StatusNoResErr, error(nil)
	s.e, err = pd.CreateSRQ(engine.SRQInit{
		MaxWR: int(s.ring.Count), MaxSGE: min((s.ring.Stride-srqHeader)/16, maxSGEs), Limit: limit, Refill: s.refill,
		Event: func(verbs.AsyncEventType) { t.eqs.event(ifc.EventSrqRqLimit, 0, eventOfQueue(s.num)) },
	})
	if err == nil {
		if s.num, st = t.give(s, 1, maxSRQs-1, c, num); st == ifc.StatusOk {
			t.receives += int(s.ring.Count)
			return ifc.StatusOk
		}
		s.e.Destroy()
	}
	s.ring.close()
	return st
}

func (s *srq) destroy() ifc.Status {
	if s.e.Destroy() != nil {
		return ifc.StatusResBusy
	}
	s.t.receives -= int(s.ring.Count)
	s.ring.close()
	return ifc.StatusOk
}

func (s *srq) query(out []byte, lwm ifc.Field) ifc.Status {
	copy(out, s.context)
	_, _, limit := s.e.Query()
	lwm.Set(out, uint64(limit))
	return ifc.StatusOk
}

func (s *srq) arm(limit int) ifc.Status {
	if limit > int(s.ring.Count) || s.e.SetLimit(limit) != nil {
		return ifc.StatusBadParamErr
	}
	return ifc.StatusOk
}

func (s *srq) modifyRMP(c *call) ifc.Status {
	const lwm = 1 // of the bitmask
	ctx := ifc.ModifyRmpInCtx.At(c.in)
	if ifc.ModifyRmpInBitmask.Get(c.in) != lwm || ifc.ModifyRmpInRmpState.Get(c.in) != rmpReady || ifc.RmpcState.Get(ctx) != rmpReady {
		return ifc.StatusBadParamErr
	}
	return s.arm(ifc.WqLwm.Int(ifc.RmpcWq.At(ctx)))
}

// refill translates the receives that the doorbell record counts. The engine's SRQ is locked.
func (s *srq) refill(r *engine.Ring) {
	// The driver links the entries in the order of posting (mlx5_ib's and libmlx5's srq.c). An index
	// of the guest is taken modulo the size of the ring.
	for range s.ring.waiting() {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		entry := s.ring.At(s.head)
		*w = abi.RxeRecvWqe{WrId: uint64(s.head)}
		gatherList(&w.Dma, sges, entry[srqHeader:])
		s.head = uint32(be.Uint16(entry[2:])) & (s.ring.Count - 1)
		s.ring.taken++
		r.Publish()
	}
}

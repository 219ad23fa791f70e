//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
)

func srqs(t *srqTable) *objects[*srq] { return &t.objects }

var srqCommands = map[uint16]func(*srqTable, *call) status{
	opCreateXrcSrq:  (*srqTable).createXRCSRQ,
	opDestroyXrcSrq: drop(srqs, destroyXrcSrqInXrcSrqn, (*srq).destroy),
	opQueryXrcSrq: on(srqs, queryXrcSrqInXrcSrqn, func(s *srq, c *call) status {
		return s.query(queryXrcSrqOutXrcSrqContextEntry.at(c.out), xrcSrqcLwm)
	}),
	opArmXrcSrq:  on(srqs, armXrcSrqInXrcSrqn, func(s *srq, c *call) status { return s.arm(armXrcSrqInLwm.int(c.in)) }),
	opCreateRmp:  (*srqTable).createRMP,
	opDestroyRmp: drop(srqs, destroyRmpInRmpn, (*srq).destroy),
	opQueryRmp: on(srqs, queryRmpInRmpn, func(s *srq, c *call) status {
		return s.query(queryRmpOutRmpContext.at(c.out), field(uint32(rmpcWq)&^0xffff+uint32(wqLwm)))
	}),
	opModifyRmp: on(srqs, modifyRmpInRmpn, (*srq).modifyRMP),
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
// (struct mlx5_wqe_srq_next_seg). Word 0 of the doorbell record counts the receives that are posted.
// Drivers make them as RMPs, or as XRC SRQs, of which the domain has no meaning here.
type srq struct {
	t       *srqTable
	num     uint32
	e       *engine.SRQ
	context []byte // struct xrc_srqc or rmpc
	ring    ring

	head uint32 // entry that is next, of refill, under the engine's lock of the SRQ
}

const (
	maxSRQs   = 1 << 16 // log_max_srq
	maxRecvs  = 1 << 18 // of all SRQs, each of which takes up to 1 KiB here
	srqHeader = 16
	rmpReady  = 1 // rmpc.state
)

func (t *srqTable) createXRCSRQ(c *call) status {
	ctx := bytes.Clone(createXrcSrqInXrcSrqContextEntry.at(c.in))
	if createXrcSrqInXrcSrqUmemValid.is(c.in) || xrcSrqcWqSignature.is(ctx) || xrcSrqcDbrUmemValid.is(ctx) || xrcSrqcBasicCyclicRcvWqe.is(ctx) || xrcSrqcState.is(ctx) {
		return statusBadParamErr
	}
	record := xrcSrqcDbRecordAddrH.get(ctx)<<32 | xrcSrqcDbRecordAddrL.get(ctx)<<2
	s := &srq{t: t, context: ctx, ring: ring{count: 1 << xrcSrqcLogXrcSrqSize.int(ctx), stride: 16 << xrcSrqcLogRqStride.int(ctx)}}
	return s.create(c, createXrcSrqOutXrcSrqn, createXrcSrqInPas.at(c.in), xrcSrqcLogPageSize.int(ctx), xrcSrqcPageOffset.int(ctx), record, xrcSrqcPd.u32(ctx), xrcSrqcLwm.int(ctx))
}

func (t *srqTable) createRMP(c *call) status {
	const linkedList = 0 // wq.wq_type
	ctx := bytes.Clone(createRmpInCtx.at(c.in))
	wq := rmpcWq.at(ctx)
	if wqWqType.get(wq) != linkedList || rmpcBasicCyclicRcvWqe.is(ctx) || rmpcState.get(ctx) != rmpReady || wqWqSignature.is(wq) ||
		wqDbrUmemValid.is(wq) || wqWqUmemValid.is(wq) || wqLogWqSz.int(wq) > 16 || wqLogWqStride.int(wq) > 12 {
		return statusBadParamErr
	}
	s := &srq{t: t, context: ctx, ring: ring{count: 1 << wqLogWqSz.int(wq), stride: 1 << wqLogWqStride.int(wq)}}
	list := field(createRmpInCtx.off()+rmpcWq.off()+wqPas.off()) << 16
	return s.create(c, createRmpOutRmpn, list.at(c.in), wqLogWqPgSz.int(wq), wqPageOffset.int(wq), wqDbrAddr.get(wq), wqPd.u32(wq), wqLwm.int(wq))
}

// create maps an SRQ and makes that of the engine. Its ring there holds all receives, as the limit is
// compared with their number.
func (s *srq) create(c *call, num field, list []byte, logPage, offset int, record uint64, pdn uint32, limit int) status {
	t := s.t
	pd, ok := t.pds.get(pdn)
	if !ok {
		return statusBadResErr
	}
	if s.ring.stride < 2*srqHeader || s.ring.count > 1<<t.caps.int(capGeneral, cmdHcaCapLogMaxSrqSz) || limit > int(s.ring.count) {
		return statusBadParamErr
	}
	if t.receives+int(s.ring.count) > maxRecvs {
		return statusNoResErr
	}
	if st := t.env.mapRing(&s.ring, list, logPage, offset, record); st != statusOk {
		return st
	}
	st, err := statusNoResErr, error(nil)
	s.e, err = pd.CreateSRQ(engine.SRQInit{
		MaxWR: int(s.ring.count), MaxSGE: min((s.ring.stride-srqHeader)/16, maxSGEs), Limit: limit, Refill: s.refill,
		Event: func(verbs.AsyncEventType) { t.eqs.event(eventSrqRqLimit, 0, eventOfQueue(s.num)) },
	})
	if err == nil {
		if s.num, st = t.give(s, 1, maxSRQs-1, c, num); st == statusOk {
			t.receives += int(s.ring.count)
			return statusOk
		}
		s.e.Destroy()
	}
	s.ring.close()
	return st
}

func (s *srq) destroy() status {
	if s.e.Destroy() != nil {
		return statusResBusy
	}
	s.t.receives -= int(s.ring.count)
	s.ring.close()
	return statusOk
}

func (s *srq) query(out []byte, lwm field) status {
	copy(out, s.context)
	_, _, limit := s.e.Query()
	lwm.set(out, uint64(limit))
	return statusOk
}

func (s *srq) arm(limit int) status {
	if limit > int(s.ring.count) || s.e.SetLimit(limit) != nil {
		return statusBadParamErr
	}
	return statusOk
}

func (s *srq) modifyRMP(c *call) status {
	const lwm = 1 // of the bitmask
	ctx := modifyRmpInCtx.at(c.in)
	if modifyRmpInBitmask.get(c.in) != lwm || modifyRmpInRmpState.get(c.in) != rmpReady || rmpcState.get(ctx) != rmpReady {
		return statusBadParamErr
	}
	return s.arm(wqLwm.int(rmpcWq.at(ctx)))
}

// refill takes the receives that the doorbell record shows. The engine's SRQ is locked.
func (s *srq) refill(r *engine.Ring) {
	for range s.ring.waiting() {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		entry := s.ring.at(s.head)
		*w = abi.RxeRecvWqe{WrId: uint64(s.head)}
		gatherList(&w.Dma, sges, entry[srqHeader:])
		s.head = uint32(be.Uint16(entry[2:])) & (s.ring.count - 1)
		s.ring.taken++
		r.Publish()
	}
}

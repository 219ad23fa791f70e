//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
)

var srqCommands = map[uint16]func(*Device, *call) status{
	opCreateXrcSrq:  (*Device).createXRCSRQ,
	opDestroyXrcSrq: func(d *Device, c *call) status { return d.destroySRQ(destroyXrcSrqInXrcSrqn.u32(c.in)) },
	opQueryXrcSrq: func(d *Device, c *call) status {
		return d.querySRQ(queryXrcSrqInXrcSrqn.u32(c.in), queryXrcSrqOutXrcSrqContextEntry.at(c.out), xrcSrqcLwm)
	},
	opArmXrcSrq: func(d *Device, c *call) status {
		return d.armSRQ(armXrcSrqInXrcSrqn.u32(c.in), armXrcSrqInLwm.int(c.in))
	},
	opCreateRmp:  (*Device).createRMP,
	opDestroyRmp: func(d *Device, c *call) status { return d.destroySRQ(destroyRmpInRmpn.u32(c.in)) },
	opQueryRmp: func(d *Device, c *call) status {
		return d.querySRQ(queryRmpInRmpn.u32(c.in), queryRmpOutRmpContext.at(c.out), field(uint32(rmpcWq)&^0xffff+uint32(wqLwm)))
	},
	opModifyRmp: (*Device).modifyRMP,
}

// srq is a shared receive queue: a list that is linked through the first 16 bytes of its entries
// (struct mlx5_wqe_srq_next_seg). Word 0 of the doorbell record counts the receives that are posted.
// Drivers make them as RMPs, or as XRC SRQs, of which the domain has no meaning here.
type srq struct {
	num     uint32
	e       *engine.SRQ
	context []byte // struct xrc_srqc or rmpc
	ring    ring

	// Of refill, under the engine's lock of the SRQ:
	head  uint32 // entry that is next
	taken uint16
}

const (
	maxSRQs   = 1 << 16 // log_max_srq
	maxRecvs  = 1 << 18 // of all SRQs, each of which takes up to 1 KiB here
	srqHeader = 16
	rmpReady  = 1 // rmpc.state
)

func (d *Device) createXRCSRQ(c *call) status {
	ctx := bytes.Clone(createXrcSrqInXrcSrqContextEntry.at(c.in))
	if createXrcSrqInXrcSrqUmemValid.is(c.in) || xrcSrqcWqSignature.is(ctx) || xrcSrqcDbrUmemValid.is(ctx) || xrcSrqcBasicCyclicRcvWqe.is(ctx) || xrcSrqcState.is(ctx) {
		return statusBadParamErr
	}
	record := xrcSrqcDbRecordAddrH.get(ctx)<<32 | xrcSrqcDbRecordAddrL.get(ctx)<<2
	s := &srq{context: ctx, ring: ring{count: 1 << xrcSrqcLogXrcSrqSize.int(ctx), stride: 16 << xrcSrqcLogRqStride.int(ctx)}}
	st := d.addSRQ(s, createXrcSrqInPas.at(c.in), xrcSrqcLogPageSize.int(ctx), xrcSrqcPageOffset.int(ctx), record, xrcSrqcPd.u32(ctx), xrcSrqcLwm.int(ctx))
	createXrcSrqOutXrcSrqn.set(c.out, uint64(s.num))
	return st
}

func (d *Device) createRMP(c *call) status {
	const linkedList = 0 // wq.wq_type
	ctx := bytes.Clone(createRmpInCtx.at(c.in))
	wq := rmpcWq.at(ctx)
	if wqWqType.get(wq) != linkedList || rmpcBasicCyclicRcvWqe.is(ctx) || rmpcState.get(ctx) != rmpReady || wqWqSignature.is(wq) ||
		wqDbrUmemValid.is(wq) || wqWqUmemValid.is(wq) || wqLogWqSz.int(wq) > 16 || wqLogWqStride.int(wq) > 12 {
		return statusBadParamErr
	}
	s := &srq{context: ctx, ring: ring{count: 1 << wqLogWqSz.int(wq), stride: 1 << wqLogWqStride.int(wq)}}
	list := field(createRmpInCtx.off()+rmpcWq.off()+wqPas.off()) << 16
	st := d.addSRQ(s, list.at(c.in), wqLogWqPgSz.int(wq), wqPageOffset.int(wq), wqDbrAddr.get(wq), wqPd.u32(wq), wqLwm.int(wq))
	createRmpOutRmpn.set(c.out, uint64(s.num))
	return st
}

// addSRQ maps an SRQ and makes that of the engine. Its ring there holds all receives, as the limit is
// compared with their number.
func (d *Device) addSRQ(s *srq, list []byte, logPage, offset int, record uint64, pdn uint32, limit int) status {
	pd, ok := d.res.pds.get(pdn)
	if !ok {
		return statusBadResErr
	}
	if s.ring.stride < 2*srqHeader || s.ring.count > 1<<d.caps.int(capGeneral, cmdHcaCapLogMaxSrqSz) || limit > int(s.ring.count) {
		return statusBadParamErr
	}
	if d.t.numRecvs+int(s.ring.count) > maxRecvs {
		return statusNoResErr
	}
	if st := d.mapRing(&s.ring, list, logPage, offset, record); st != statusOk {
		return st
	}
	var err error
	s.e, err = pd.CreateSRQ(engine.SRQInit{
		MaxWR: int(s.ring.count), MaxSGE: min((s.ring.stride-srqHeader)/16, maxSGEs), Limit: limit, Refill: s.refill,
		Event: func(verbs.AsyncEventType) { d.event(eventSrqRqLimit, 0, eventOfQueue(s.num)) },
	})
	if err == nil {
		if s.num, ok = d.t.srqs.add(s, 1, maxSRQs-1); ok {
			d.t.numRecvs += int(s.ring.count)
			return statusOk
		}
		s.e.Destroy()
	}
	s.ring.close()
	return statusNoResErr
}

func (d *Device) destroySRQ(num uint32) status {
	s, ok := d.t.srqs.get(num)
	if !ok {
		return statusBadResErr
	}
	if s.e.Destroy() != nil {
		return statusResBusy
	}
	d.t.srqs.remove(num)
	d.t.numRecvs -= int(s.ring.count)
	s.ring.close()
	return statusOk
}

func (d *Device) querySRQ(num uint32, out []byte, lwm field) status {
	s, ok := d.t.srqs.get(num)
	if !ok {
		return statusBadResErr
	}
	copy(out, s.context)
	_, _, limit := s.e.Query()
	lwm.set(out, uint64(limit))
	return statusOk
}

func (d *Device) armSRQ(num uint32, limit int) status {
	s, ok := d.t.srqs.get(num)
	if !ok {
		return statusBadResErr
	}
	if limit > int(s.ring.count) || s.e.SetLimit(limit) != nil {
		return statusBadParamErr
	}
	return statusOk
}

func (d *Device) modifyRMP(c *call) status {
	const lwm = 1 // of the bitmask
	ctx := modifyRmpInCtx.at(c.in)
	if modifyRmpInBitmask.get(c.in) != lwm || modifyRmpInRmpState.get(c.in) != rmpReady || rmpcState.get(ctx) != rmpReady {
		return statusBadParamErr
	}
	return d.armSRQ(modifyRmpInRmpn.u32(c.in), wqLwm.int(rmpcWq.at(ctx)))
}

// refill takes the receives that the doorbell record shows. The engine's SRQ is locked.
func (s *srq) refill(r *engine.Ring) {
	n := uint16(s.ring.posted(recvRecord)) - s.taken
	for n = uint16(min(uint32(n), s.ring.count)); n > 0; n-- {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		entry := s.ring.at(s.head)
		*w = abi.RxeRecvWqe{WrId: uint64(s.head)}
		gatherList(&w.Dma, sges, entry[srqHeader:])
		s.head = uint32(be.Uint16(entry[2:])) & (s.ring.count - 1)
		s.taken++
		r.Publish()
	}
}

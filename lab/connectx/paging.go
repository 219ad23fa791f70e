//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// On-demand paging: a QP that finds a page of a key missing raises an event and waits. The driver finds
// the pages, by the request in the guest's queue or by the key and the address that a peer's request
// names, loads them by UMR requests, and resumes the QP by a command (mlx5_ib's odp.c). The token of an
// event is the number of the engine's QP: so the adapter keeps nothing of a fault but the QP's state,
// and a guest that never resumes it holds nothing else.

var pagingCommands = map[uint16]func(*transport, *call) ifc.Status{ifc.OpPageFaultResume: (*transport).resume}

// pageFault raises the event of a page fault (struct mlx5_eqe_page_fault). The engine's QP is locked.
func (q *qp) pageFault(f engine.PageFault) {
	data := make([]byte, 28)
	be.PutUint32(data, f.Done)
	be.PutUint16(data[10:], uint16(min(f.Packet, 0xffff)))
	if !f.Request {
		typ := ifc.PageFaultResumeRdma
		if f.Write {
			typ |= ifc.PageFaultResumeWrite
		}
		be.PutUint32(data[4:], f.Key)
		be.PutUint32(data[12:], f.Length)
		be.PutUint64(data[16:], f.Addr)
		be.PutUint32(data[24:], uint32(typ)<<24|f.QP)
		q.t.eqs.event(ifc.EventPageFault, ifc.PfaultSubtypeRdma, data)
		return
	}
	queue, typ := q.num, ifc.WqePfTypeResp
	switch {
	case f.Requester && requestReads(f.ID):
		typ = ifc.WqePfTypeReqReadOrAtomic
	case f.Requester:
		typ = ifc.WqePfTypeReqSendOrWrite
	case q.srq != nil:
		queue, typ = q.srq.num, ifc.WqePfTypeRmp
	}
	be.PutUint16(data[6:], uint16(f.ID))
	be.PutUint32(data[12:], f.QP)
	be.PutUint32(data[24:], uint32(typ)<<24|queue)
	q.t.eqs.event(ifc.EventPageFault, ifc.PfaultSubtypeWqe, data)
}

// requestReads reports whether the request with an ID stores what its peer answers.
func requestReads(id uint64) bool {
	switch byte(id >> idOpcode) {
	case ifc.OpcodeRdmaRead, ifc.OpcodeAtomicCs, ifc.OpcodeAtomicFa:
		return true
	}
	return false
}

// resume continues a QP after a page fault.
func (t *transport) resume(c *call) ifc.Status {
	info := ifc.PageFaultResumeInPageFaultInfo.At(c.in)
	token, typ := ifc.TransPageFaultInfoFaultToken.U32(info), ifc.TransPageFaultInfoPageFaultType.Int(info)
	// The driver names the queue, and of peers' requests the token again (mlx5_ib_page_fault_resume).
	queue := ifc.TransPageFaultInfoWqNumber.U32(info)
	if known := queue == token || typ == ifc.WqePfTypeRmp && t.srqs.Has(queue); !known {
		return ifc.StatusBadParamErr
	}
	requester := typ == ifc.WqePfTypeReqSendOrWrite || typ == ifc.WqePfTypeReqReadOrAtomic
	if t.eng.Resume(token, requester, !ifc.TransPageFaultInfoError.Is(info)) != nil {
		return ifc.StatusBadResStateErr
	}
	return ifc.StatusOk
}

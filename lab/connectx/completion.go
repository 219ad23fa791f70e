//go:build linux

package connectx

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/mmap"
)

// complete makes an entry of a completion. The engine's QP is locked.
func (q *qp) complete(c *cq, w engine.Completion) bool {
	var e cqe
	// What both layouts have. Drivers find the QP by its user index or its number, and the request
	// by the counter (mlx5_ib's cq.c, mlx5_poll_one; libmlx5's cq.c with version 1 of CQEs).
	be.PutUint32(e[cqeUserIndex:], q.userIndex)
	be.PutUint32(e[cqeOpQPN:], q.num)
	if !w.Recv {
		e[cqeOpQPN] = byte(w.WrId >> idOpcode)
	}
	be.PutUint16(e[cqeCounter:], uint16(w.WrId))
	if w.Status != uint32(verbs.WCSuccess) {
		// A QP that completes with an error is in the error state: all that follows is flushed.
		q.failed()
		op, side := byte(cqeRequestError), failedRequests
		if w.Recv {
			op, side = cqeReceiveError, failedReceives
		}
		if w.Status < uint32(len(syndromes)) {
			q.t.failures[side][w.Status].Add(1)
		}
		e.setSyndrome(syndromes[verbs.WCFlushErr])
		if w.Status < uint32(len(syndromes)) && syndromes[w.Status] != 0 {
			e.setSyndrome(syndromes[w.Status])
		}
		return q.delivered(c.put(&e, op, true))
	}
	// Programs read the time as IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, in units of
	// device_frequency_khz.
	be.PutUint64(e[cqeTime:], q.t.env.clock())
	be.PutUint32(e[cqeByteCount:], w.ByteLen)
	op := byte(cqeRequest)
	if w.Recv {
		op = q.received(&e, &w)
	}
	return q.delivered(c.put(&e, op, w.Solicited))
}

// received fills in what an entry of a receive has, and returns its opcode.
func (q *qp) received(e *cqe, w *engine.Completion) (op byte) {
	const withImm, withInvalidate = uint32(verbs.WCWithImm), 1 << 2 // as the engine has them
	op = cqeSend
	switch {
	case w.WcFlags&withInvalidate != 0:
		op = cqeSendInval
		be.PutUint32(e[cqeImm:], *w.Ex.InvalidateRkey())
	case w.WcFlags&withImm != 0:
		op = cqeSendImm
		if w.Opcode == uint32(verbs.WCRecvRDMAImm) {
			op = cqeWriteImm
		}
		copy(e[cqeImm:], mmap.Bytes(w.Ex.ImmData()))
	// The kernel looks up the index of this P_Key for its MADs (mlx5_ib's cq.c, handle_responder).
	case q.st == ifc.QpTypeQp1:
		be.PutUint32(e[cqeImm:], defaultPKey)
	}
	// flags_rqpn. With RoCE v2 there is always a GRH, which holds the IP header.
	flags := w.SrcQp & 0xffffff
	switch {
	case q.t.paths.infiniBand:
		src := w.Src.As16()
		be.PutUint16(e[cqeSLID:], lidOf(src[14:]))
		if !lids.Contains(w.Src) {
			flags |= 1 << 28
		}
	case w.Src.Is4():
		flags |= 1<<28 | ifc.CqeRoceL3HeaderTypeIpv4<<24
	default:
		flags |= 1<<28 | ifc.CqeRoceL3HeaderTypeIpv6<<24
	}
	be.PutUint32(e[cqeFlagsRQPN:], flags)
	return op
}

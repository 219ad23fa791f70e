//go:build linux

package connectx

import (
	"cmp"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/mmap"
)

// complete writes the entry of a completion. The engine's QP is locked.
func (q *qp) complete(c *cq, w engine.Completion) bool {
	if w.Status != uint32(verbs.WCSuccess) {
		// The QP is now in the error state, and what the guest posts from now on is flushed.
		q.failed()
	}
	e, op, solicited := q.entry(&w)
	return q.delivered(c.put(&e, op, solicited))
}

// entry returns the entry of a completion, without what the CQ writes.
func (q *qp) entry(w *engine.Completion) (e cqe, op byte, solicited bool) {
	// Both layouts have these. mlx5_ib's mlx5_poll_one finds the QP by its number, libmlx5 by its
	// user index, and both find the request by the counter.
	be.PutUint32(e[cqeUserIndex:], q.userIndex)
	be.PutUint32(e[cqeOpQPN:], q.num)
	if !w.Recv {
		e[cqeOpQPN] = byte(w.WrId >> idOpcode)
	}
	be.PutUint16(e[cqeCounter:], uint16(w.WrId))
	if w.Status != uint32(verbs.WCSuccess) {
		op, failed := byte(cqeRequestError), &q.t.failures[failedRequests]
		if w.Recv {
			op, failed = cqeReceiveError, &q.t.failures[failedReceives]
		}
		syndrome := syndromes[verbs.WCFlushErr]
		if w.Status < uint32(len(syndromes)) {
			failed[w.Status].Add(1)
			syndrome = cmp.Or(syndromes[w.Status], syndrome)
		}
		e.setSyndrome(syndrome)
		return e, op, true
	}
	be.PutUint64(e[cqeTime:], q.timestamp())
	be.PutUint32(e[cqeByteCount:], w.ByteLen)
	op = cqeRequest
	if w.Recv {
		op = q.received(&e, w)
	}
	return e, op, w.Solicited
}

// Formats of timestamps, qpc.ts_format: MLX5_TIMESTAMP_FORMAT_FREE_RUNNING, which is in units of
// device_frequency_khz, _DEFAULT, which is the same here, and _REAL_TIME, seconds and nanoseconds
// of 32 bits each.
const realTimeStamps = 2

// timestamp returns the time in the format that the QP was created with. A target of DC, which the
// engine knows no QP of, has the default: struct dctc names none.
func (q *qp) timestamp() uint64 {
	if !q.realTime {
		return q.t.env.clock()
	}
	now := time.Now()
	return uint64(now.Unix())<<32 | uint64(now.Nanosecond())
}

// received fills in the fields of an entry of a receive, and returns its opcode.
func (q *qp) received(e *cqe, w *engine.Completion) (op byte) {
	const withImm, withInvalidate = uint32(verbs.WCWithImm), 1 << 2 // the engine's flags
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
	// A GRH is in the buffer of a datagram (MLX5_GRH_IN_BUFFER in bit 28). With RoCE v2 there is always
	// one, and it holds the IP header (IBTA vol. 1, Annex A17).
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

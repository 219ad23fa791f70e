package engine

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// resource is a READ, atomic or FLUSH that the peer may repeat, because its answer may be lost
// (rxe's struct resp_res).
type resource struct {
	kind   opKind // opUnknown: not in use
	first  roce.PSN
	last   roce.PSN
	va     uint64
	length uint32
	rkey   uint32
	orig   uint64 // result of an atomic
}

type reply struct {
	active bool
	first  bool // no packet has been sent
	again  bool // the READ has been answered before
	va     uint64
	rkey   uint32
	left   uint32
	psn    roce.PSN
}

// history contains the READs, atomics and FLUSHes that the peer may repeat, the newest before next:
// as many as the QP's attribute MaxDestRDAtomic (IBA, 9.4.4 and 9.4.5). A repeated READ is executed
// again, as it changes nothing. A repeated atomic must not be: adding twice is wrong, so its result
// is kept and replayed. SENDs and WRITEs need no place: they are acknowledged again by their PSN
// alone.
type history struct {
	list []resource
	next int
}

// keep makes p a resource, which replaces the oldest one.
func (h *history) keep(p *packet, kind opKind, packets int) *resource {
	if len(h.list) == 0 {
		// MaxDestRDAtomic is 0.
		return new(resource) // a FLUSH needs none
	}
	res := &h.list[h.next]
	h.next = (h.next + 1) % len(h.list)
	*res = resource{kind: kind, first: p.PSN, last: p.PSN.Add(packets - 1)}
	return res
}

// at returns the resource with a PSN, or nil, the newest first: PSNs repeat after 2^24 packets,
// when the list may still have an old READ's.
func (h *history) at(psn roce.PSN) *resource {
	n := len(h.list)
	for i := range h.list {
		res := &h.list[(h.next+n-1-i)%n]
		if res.kind != opUnknown && !psn.Before(res.first) && !psn.After(res.last) {
			return res
		}
	}
	return nil
}

// read starts the answer to a READ. Its packets have the PSNs from the request's on
// (rxe_prepare_res), so the expected PSN is behind them at once: the next request may come before
// the answer is sent.
func (r *responder) read(p *packet) fault {
	length := p.RETH.Length
	if length > 0 {
		// The whole range is checked before anything is answered. The key of a READ of nothing is
		// not (C9-88).
		at := r.qp.remote(p.RETH.RKey, verbs.AccessRemoteRead, p.RETH.VA, uint64(length), uint64(length))
		there := at.mr != nil
		if there {
			// The first byte, as a peer that is asked to wait sends the request again, and one that waits for an
			// answer loses patience.
			if at.paged {
				there = copyMemory(make([]byte, 1), at.mem[:1])
			}
			at.unlock()
		}
		switch f := (PageFault{Key: p.RETH.RKey, Addr: p.RETH.VA, Length: length, Packet: min(length, uint32(r.qp.mtu))}); {
		case there:
		case at.paged && r.missing(f):
			return faultPage
		default:
			return faultAccess
		}
	}
	packets := max(1, int((uint64(length)+uint64(r.qp.mtu)-1)/uint64(r.qp.mtu)))
	res := r.history.keep(p, opRead, packets)
	res.va, res.length, res.rkey = p.RETH.VA, length, p.RETH.RKey
	// A READ counts as complete when it is accepted (C9-148).
	r.msn++
	r.psn = p.PSN.Add(packets)
	r.inMessage = false
	r.reply = reply{active: true, first: true, va: p.RETH.VA, rkey: p.RETH.RKey, left: length, psn: p.PSN}
	r.continueReply()
	return noFault
}

// continueReply sends the packets of the answer to a READ, and then processes the requests
// that wait behind it.
func (r *responder) continueReply() {
	for sent := 0; r.reply.active; sent++ {
		// A READ may have 2³¹ bytes: let other QPs work meanwhile.
		if sent == burst {
			r.qp.yield()
			return
		}
		if !r.replyPacket() {
			return
		}
	}
	if len(r.waiting) == 0 {
		return
	}
	// Requests that waited may be READs as well: then the rest waits on.
	waiting := r.waiting
	r.waiting = nil
	for i, p := range waiting {
		if r.reply.active {
			r.waiting = append(r.waiting, waiting[i:]...)
			break
		}
		if r.qp.state != verbs.StateErr {
			r.handleNow(p)
		}
		r.qp.dev.putPacket(p)
	}
	if r.waiting == nil {
		clear(waiting)
		r.waiting = waiting[:0]
	}
}

// replyPacket sends the next packet of the answer to a READ. It reports false if it has ended the
// QP because the memory is gone, or waits for a page.
func (r *responder) replyPacket() bool {
	rep := &r.reply
	n := min(rep.left, uint32(r.qp.mtu))
	// ACKUnlimited: this responder does not take part in end-to-end flow control (IBA, 9.7.7.2), in
	// which it would tell how many receives it has. It refuses with RNR NAKs instead, as rxe does.
	h := roce.Packet{
		DestQP: r.qp.attr.DestQPNum, PSN: rep.psn,
		AETH: roce.AETH{Syndrome: roce.ACKUnlimited, MSN: r.msn},
	}
	switch last := n == rep.left; {
	case rep.first && last:
		h.Opcode = roce.RCReadResponseOnly
	case rep.first:
		h.Opcode = roce.RCReadResponseFirst
	case last:
		h.Opcode = roce.RCReadResponseLast
	default:
		h.Opcode = roce.RCReadResponseMiddle
	}
	o := r.out.begin(r.qp.path, &h, int(n))
	if got := r.readMemory(rep, o.payload); got != copyOK {
		r.out.abort(&o)
		if got == copyMissing { // Resume continues with this packet
			return false
		}
		// The program has revoked the key, or unmapped the memory, since the request was accepted.
		// The NAK has the PSN of the response that is missing (IBA, 9.7.5.2.4).
		psn := rep.psn
		if rep.again { // the peer may have got the answer long ago: then it ignores the NAK
			*rep = reply{}
			r.sendNAK(roce.NAKRemoteAccess, psn)
			return true
		}
		r.qp.report(verbs.EventQPAccessErr)
		r.sendNAK(roce.NAKRemoteAccess, psn)
		r.qp.setError()
		return false
	}
	r.out.send(&o, &h)
	r.ack.due = false // a response acknowledges all requests before it
	rep.first = false
	rep.left -= n
	rep.psn = rep.psn.Add(1)
	rep.active = rep.left > 0
	return true
}

// readMemory fills a packet of the answer.
func (r *responder) readMemory(rep *reply, payload []byte) copyResult {
	va := rep.va
	for len(payload) > 0 {
		// The key is looked up for each packet, as it may be revoked in between (rxe_recheck_mr).
		n := uint64(len(payload))
		at := r.qp.remote(rep.rkey, verbs.AccessRemoteRead, rep.va, n, n)
		got, ok := at.copy(payload, false)
		if !ok {
			f := PageFault{Key: rep.rkey, Addr: va, Length: rep.left, Done: uint32(rep.va - va), Packet: uint32(n)}
			rep.va = va
			if at.paged && r.missing(f) {
				return copyMissing
			}
			return copyInvalid
		}
		payload = payload[got:]
		rep.va += uint64(got)
	}
	return copyOK
}

// answer ends a request of one packet that is not a SEND or WRITE: it keeps and sends the answer.
func (r *responder) answer(p *packet, kind opKind, o roce.Opcode, orig uint64) fault {
	if kind != opFlush { // it is no credit of the peer, and can be answered again without
		r.history.keep(p, kind, 1).orig = orig
	}
	r.msn++
	r.psn = p.PSN.Add(1)
	r.inMessage = false
	r.sendResponse(o, p.PSN, roce.ACKUnlimited, orig)
	return noFault
}

// atomic executes a COMPARE SWAP or FETCH ADD. It is atomic to the program's own atomics too, see
// compareSwap, which is more than an adapter guarantees (IBV_ATOMIC_HCA).
func (r *responder) atomic(p *packet) fault {
	a := &p.Atomic
	at := r.qp.remote(a.RKey, verbs.AccessRemoteAtomic, a.VA, 8, 8)
	refused := func() fault {
		if at.paged && r.missing(PageFault{Key: a.RKey, Addr: a.VA, Length: 8, Write: true, Packet: 8}) {
			return faultPage
		}
		return faultAccess
	}
	if at.mr == nil {
		return refused()
	}
	defer at.unlock()
	w := word(at.mem)
	// Operands of 8 bytes have to be aligned (IBA, 9.4.5).
	if w == nil {
		return faultInvalid
	}
	var orig uint64
	var ok bool
	if p.Opcode == roce.RCCompareSwap {
		orig, ok = compareSwap(w, a.Compare, a.SwapAdd)
	} else {
		orig, ok = fetchAdd(w, a.SwapAdd)
	}
	if !ok {
		return refused()
	}
	return r.answer(p, opAtomic, roce.RCAtomicAcknowledge, orig)
}

// atomicWrite executes an ATOMIC WRITE (Annex A19): 8 bytes that readers see all at once.
func (r *responder) atomicWrite(p *packet) fault {
	if p.RETH.Length != 8 {
		return faultLength
	}
	at := r.qp.remote(p.RETH.RKey, verbs.AccessRemoteWrite, p.RETH.VA, 8, 8)
	if at.mr == nil {
		return faultAccess
	}
	defer at.unlock()
	w := word(at.mem)
	if w == nil {
		return faultInvalid
	}
	if !storeWord(w, binary.NativeEndian.Uint64(p.Payload)) {
		return faultAccess
	}
	return r.answer(p, opAtomicWrite, roce.RCReadResponseOnly, 0)
}

// flushMemory executes a FLUSH (Annex A19), which the peer sends after WRITEs to know that their
// data has got as far as it asks for. Memory is visible to all once it has been written, so there
// is nothing to do but to check.
func (r *responder) flushMemory(p *packet) fault {
	va, length := p.RETH.VA, uint64(p.RETH.Length)
	if p.FETH.Selectivity == roce.FlushRegion { // the range has no meaning
		if mr := r.qp.dev.mrs.get(p.RETH.RKey >> 8); mr != nil {
			va, length = mr.iova, 0
		}
	}
	at := r.qp.remote(p.RETH.RKey, flushAccess(p), va, length, 0)
	if at.mr == nil {
		return faultAccess
	}
	at.unlock()
	return r.answer(p, opFlush, roce.RCReadResponseOnly, 0)
}

// repeat answers a request that has been executed before (duplicate_request; IBA, 9.7.5.1.3): its
// answer was lost or late. A request that is not remembered is dropped: the peer has exceeded
// MaxDestRDAtomic, or has gone on since.
func (r *responder) repeat(p *packet) {
	f := p.Opcode.Flags()
	if f&(roce.IsSend|roce.IsWrite) != 0 {
		// The data is not taken again. The acknowledgement is of the newest request, which covers
		// this one (C9-105).
		r.ack.due, r.ack.of = true, r.ack.next.Add(-1)
		return
	}
	r.sendAck() // of later requests, which the old answer does not acknowledge
	if f&roce.IsFlush != 0 {
		r.sendResponse(roce.RCReadResponseOnly, p.PSN, roce.ACKUnlimited, 0)
		return
	}
	res := r.history.at(p.PSN)
	if res == nil {
		return
	}
	switch {
	case f&roce.IsRead != 0:
		if res.kind == opRead {
			r.repeatRead(p, res)
		}
	case f&roce.IsAtomic != 0:
		if res.kind == opAtomic {
			// The result of the first time, without another look at the memory.
			r.sendResponse(roce.RCAtomicAcknowledge, p.PSN, roce.ACKUnlimited, res.orig)
		}
	case res.kind == opAtomicWrite:
		r.sendResponse(roce.RCReadResponseOnly, p.PSN, roce.ACKUnlimited, 0)
	}
}

// repeatRead answers a READ, or the rest of one, again: a request for the rest has the PSN and the
// address of the first byte that is missing, which must be within the READ that is remembered. The
// answer begins with a FIRST or an ONLY in both cases: rxe's requester may have forgotten that it
// has seen the FIRST of the READ.
func (r *responder) repeatRead(p *packet, res *resource) {
	h := &p.RETH
	off := h.VA - res.va
	if h.RKey != res.rkey || h.VA < res.va || off > uint64(res.length) || uint64(h.Length) > uint64(res.length)-off {
		return
	}
	r.reply = reply{active: true, first: true, again: true, va: h.VA, rkey: h.RKey, left: h.Length, psn: p.PSN}
	r.continueReply()
}

func (r *responder) sendAck() {
	if r.ack.due {
		r.sendResponse(roce.RCAcknowledge, r.ack.of, roce.ACKUnlimited, 0)
	}
}

// sendNAK sends a negative acknowledgement (IBA, 9.7.5.2). It implies the acknowledgement that is
// due, as it acknowledges all before its PSN, but only the latter makes rxe count its retries from
// the beginning.
func (r *responder) sendNAK(s roce.Syndrome, psn roce.PSN) {
	r.sendAck()
	r.sendResponse(roce.RCAcknowledge, psn, s, 0)
}

func (r *responder) sendResponse(o roce.Opcode, psn roce.PSN, s roce.Syndrome, orig uint64) {
	r.ack.due = false
	h := roce.Packet{
		Opcode: o, DestQP: r.qp.attr.DestQPNum, PSN: psn, Orig: orig,
		AETH: roce.AETH{Syndrome: s, MSN: r.msn},
	}
	out := r.out.begin(r.qp.path, &h, 0)
	r.out.send(&out, &h)
}

package engine

import (
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/mmap"
)

// responder is the state of executing a peer's requests.
type responder struct {
	psn       roce.PSN    // expected
	ackPSN    roce.PSN    // after the last request that is acknowledged, not answered
	msn       uint32      // requests completed
	opcode    roce.Opcode // of the previous packet of the message, if inMessage
	inMessage bool
	dropping  bool // UC: until the next message
	nakSent   bool // until the expected packet arrives
	reported  bool // EventCommEst

	received bool // a message, in this series of packets

	ackDue bool // an acknowledgement of ackOf is to be sent
	ackOf  roce.PSN

	recv receive
	src  netip.Addr // of the last message, for Completion

	// of the RDMA WRITE in progress
	va     uint64
	rkey   uint32
	left   uint32
	length uint32

	resources    []resource // READs and atomics, which may be repeated
	nextResource int
	reply        reply
	waiting      []*packet // requests behind the reply
}

// respond processes a request (rxe_receiver).
func (qp *QP) respond(p *packet) {
	if qp.state == verbs.StateRTR && !qp.resp.reported && qp.typ != verbs.UD {
		qp.resp.reported = true
		qp.report(verbs.EventCommEst)
	}
	if qp.resp.reply.active {
		qp.delay(p)
		return
	}
	qp.respondNow(p)
}

// delay keeps a copy of a request until the reply in progress has been sent.
func (qp *QP) delay(p *packet) {
	if len(qp.resp.waiting) == backlog {
		return // it will be repeated
	}
	// Of a payload that is too long, enough is kept to be refused: a packet may have 64 KiB.
	c := qp.dev.getPacket(min(len(p.Payload), qp.mtu+1))
	buf := c.buf
	*c = *p
	c.buf = buf
	copy(buf, p.Payload)
	c.Payload = buf
	qp.resp.waiting = append(qp.resp.waiting, c)
}

// drop drops the reply in progress and the requests behind it.
func (r *responder) drop(d *Device) {
	r.reply = reply{}
	for _, p := range r.waiting {
		d.putPacket(p)
	}
	clear(r.waiting)
	r.waiting = r.waiting[:0]
	r.ackDue = false
}

func (qp *QP) respondNow(p *packet) {
	fresh := qp.checkPSN(p)
	if !fresh {
		return
	}
	f := qp.checkSequence(p)
	if f == noFault {
		f = qp.checkRequest(p)
	}
	if f == noFault {
		f = qp.execute(p)
	}
	if f != noFault {
		qp.refuse(p, f)
	}
}

// checkPSN reports whether a request is the expected one. It answers others.
func (qp *QP) checkPSN(p *packet) bool {
	r := &qp.resp
	diff := p.PSN.Sub(r.psn)
	switch qp.typ {
	case verbs.RC:
		switch {
		case diff > 0:
			if !r.nakSent {
				r.nakSent = true
				qp.dev.counters.add(outOfSequence, 1)
				qp.sendNAK(roce.NAKSequence, r.psn)
			}
			return false
		case diff < 0:
			qp.dev.counters.add(duplicateRequests, 1)
			qp.repeat(p)
			return false
		}
		if r.nakSent { // rxe fails after some NAKs with no acknowledgement in between
			r.nakSent = false
			p.AckReq = true
		}
	case verbs.UC:
		if r.dropping || diff != 0 {
			r.dropping = !p.Opcode.Has(roce.Starts)
			return !r.dropping
		}
	}
	return true
}

// checkSequence checks that the packet continues the message in progress, or starts one.
func (qp *QP) checkSequence(p *packet) fault {
	r := &qp.resp
	if qp.typ == verbs.UD {
		return noFault
	}
	starts := p.Opcode.Has(roce.Starts)
	if !r.inMessage {
		if starts {
			return noFault
		}
		if qp.typ == verbs.UC {
			r.dropping = true
			return faultDrop
		}
		return faultInvalid
	}
	const kinds = roce.IsSend | roce.IsWrite
	if !starts && p.Opcode.Flags()&kinds == r.opcode.Flags()&kinds {
		return noFault
	}
	if qp.typ == verbs.RC {
		return faultInvalid
	}
	// UC: the rest of the message is lost.
	r.inMessage = false
	switch {
	case !starts:
		r.dropping = true
		return faultDrop
	case qp.srq != nil && r.recv.active:
		qp.completeReceive(p, verbs.WCRemInvReqErr)
	}
	r.recv.active = false
	return noFault
}

// checkRequest checks rights, resources and lengths, and takes a receive request if one is
// needed.
func (qp *QP) checkRequest(p *packet) fault {
	f := p.Opcode.Flags()
	if !qp.allowed(p, f) {
		if qp.typ == verbs.UC {
			qp.resp.dropping = true
			return faultDrop
		}
		return faultInvalid
	}
	if f&(roce.IsRead|roce.IsAtomic|roce.IsAtomicWrite) != 0 && len(qp.resp.resources) == 0 {
		return faultInvalid
	}
	if f&roce.TakesReceive != 0 {
		switch qp.takeReceive() {
		case takeEmpty:
			return faultNotReady
		case takeMalformed:
			return faultReceive
		}
	}
	if qp.typ == verbs.UD {
		if uint64(len(p.Payload))+verbs.GRHSize > qp.resp.recv.room() {
			return faultLength
		}
		return noFault
	}
	if f&roce.HasPayload != 0 && !p.Opcode.PayloadFits(len(p.Payload), qp.mtu) {
		return faultLength
	}
	if f&roce.HasRETH != 0 && p.RETH.Length > maxMessage {
		return faultLength
	}
	return noFault
}

// allowed checks the rights that the QP grants to its peer.
func (qp *QP) allowed(p *packet, f roce.Flags) bool {
	var need verbs.Access
	switch {
	case f&roce.IsRead != 0:
		need = verbs.AccessRemoteRead
	case f&(roce.IsWrite|roce.IsAtomicWrite) != 0:
		need = verbs.AccessRemoteWrite
	case f&roce.IsAtomic != 0:
		need = verbs.AccessRemoteAtomic
	case f&roce.IsFlush != 0:
		need = flushAccess(p)
	}
	return qp.attr.Access&need == need
}

// flushAccess returns the rights that a FLUSH requires.
func flushAccess(p *packet) (a verbs.Access) {
	if p.FETH.Placement&roce.FlushGlobal != 0 {
		a |= verbs.AccessFlushGlobal
	}
	if p.FETH.Placement&roce.FlushPersistent != 0 {
		a |= verbs.AccessFlushPersistent
	}
	return a
}

// execute executes a request that is expected and valid.
func (qp *QP) execute(p *packet) fault {
	r := &qp.resp
	f := p.Opcode.Flags()
	switch {
	case f&roce.IsSend != 0:
		if fault := qp.receiveData(p); fault != noFault {
			return fault
		}
	case f&roce.IsWrite != 0:
		if f&roce.Starts != 0 {
			qp.dev.counters.add(writeRequests, 1)
		}
		if fault := qp.write(p, f); fault != noFault {
			return fault
		}
	case f&roce.IsRead != 0:
		qp.dev.counters.add(readRequests, 1)
		return qp.read(p)
	case f&roce.IsAtomic != 0:
		qp.dev.counters.add(atomicRequests, 1)
		return qp.atomic(p)
	case f&roce.IsAtomicWrite != 0:
		return qp.atomicWrite(p)
	case f&roce.IsFlush != 0:
		return qp.flush(p)
	}
	if f&roce.HasIETH != 0 && !qp.invalidate(p.IETH) {
		return faultKey
	}
	if f&roce.Ends != 0 {
		r.msn++
	}
	r.psn = p.PSN.Add(1)
	r.ackPSN = r.psn
	r.opcode, r.inMessage = p.Opcode, f&roce.Ends == 0
	if f&roce.Completes != 0 && r.recv.active && !qp.completeReceive(p, verbs.WCSuccess) {
		qp.setError() // rxe's class G: the CQ has overflowed
		return noFault
	}
	if qp.typ == verbs.RC && p.AckReq {
		r.ackDue, r.ackOf = true, p.PSN
	}
	return noFault
}

// hopLimit is that of received packets, which networks do not report.
const hopLimit = 64

// receiveData copies the payload of a SEND, after the IP header if it is a datagram.
func (qp *QP) receiveData(p *packet) fault {
	if qp.typ == verbs.UD {
		var grh [verbs.GRHSize]byte
		g := roce.GRH{Src: p.src, Dst: p.dst, TrafficClass: p.tos, HopLimit: hopLimit, Length: p.Len(), ID: p.id}
		g.Put(&grh)
		if f := qp.scatter(grh[:]); f != noFault {
			return f
		}
	}
	return qp.scatter(p.Payload)
}

// scatter copies data to the memory of the receive request.
func (qp *QP) scatter(data []byte) fault {
	r := &qp.resp.recv
	if len(data) == 0 {
		return noFault
	}
	if !r.active {
		return faultReceive
	}
	if uint32(len(data)) > r.length-r.got {
		return faultRoom
	}
	switch qp.copySGL(r.sges, &r.cursor, data, true) {
	case copyInvalid:
		return faultReceive
	case copyEnd:
		return faultLength
	}
	r.got += uint32(len(data))
	return noFault
}

// write copies the payload of an RDMA WRITE.
func (qp *QP) write(p *packet, f roce.Flags) fault {
	r := &qp.resp
	if f&roce.HasRETH != 0 {
		r.va, r.rkey, r.left, r.length = p.RETH.VA, p.RETH.RKey, p.RETH.Length, p.RETH.Length
	}
	n := uint32(len(p.Payload))
	if n > r.left || f&roce.Ends != 0 != (n == r.left) {
		return faultLength
	}
	for data := p.Payload; len(data) > 0; {
		at := qp.remote(r.rkey, verbs.AccessRemoteWrite, r.va, uint64(r.left), uint64(len(data)))
		if at.mr == nil {
			return faultAccess
		}
		n := len(at.mem)
		ok := copyMemory(at.mem, data[:n])
		at.unlock()
		if !ok {
			return faultAccess
		}
		data = data[n:]
		r.va += uint64(n)
		r.left -= uint32(n)
	}
	return noFault
}

// completeReceive completes the receive request in use. It reports false if the CQ has no
// room.
func (qp *QP) completeReceive(p *packet, status verbs.WCStatus) bool {
	r := &qp.resp.recv
	wc := qp.newWC(r.id, status)
	if status == verbs.WCSuccess {
		f := p.Opcode.Flags()
		qp.dev.counters.add(receives, 1)
		qp.resp.received = true
		wc.Opcode, wc.ByteLen = uint32(verbs.WCRecv), r.got
		if f&roce.IsWrite != 0 {
			wc.Opcode, wc.ByteLen = uint32(verbs.WCRecvRDMAImm), qp.resp.length
		}
		wc.WcFlags = uint32(verbs.WCGRH)
		if f&roce.HasImmDt != 0 {
			wc.WcFlags |= uint32(verbs.WCWithImm)
			copy(mmap.Bytes(wc.Ex.ImmData()), p.Imm[:])
		}
		if f&roce.HasIETH != 0 {
			wc.WcFlags |= wcWithInvalidate
			*wc.Ex.InvalidateRkey() = p.IETH
		}
		if f&roce.HasDETH != 0 {
			wc.SrcQp = p.DETH.SrcQP
		}
		wc.PortNum = qp.attr.Port
	}
	qp.endReceive()
	if qp.recvCQ.deliver != nil {
		qp.resp.src = p.src
	}
	return qp.post(qp.recvCQ, &wc, p.Solicited || status != verbs.WCSuccess, true)
}

// wcWithInvalidate is IB_WC_WITH_INVALIDATE of the kernel's internal enum ib_wc_flags, which
// rxe uses instead of that of the user interface.
const wcWithInvalidate = 1 << 2

// endReceive frees the receive request in use.
func (qp *QP) endReceive() {
	qp.resp.recv.active = false
	if qp.srq == nil {
		qp.rq.ring.consume()
	}
}

// flushReceives completes all receive requests of the QP.
func (qp *QP) flushReceives() {
	r := &qp.resp.recv
	if qp.srq != nil {
		if r.active {
			r.active = false
			wc := qp.newWC(r.id, verbs.WCFlushErr)
			qp.post(qp.recvCQ, &wc, true, true)
		}
		return
	}
	r.active = false
	ring := qp.rq.ring
	for n := 0; n < maxQPWR && !ring.empty(qp.refillRecv); n++ { // the program may add more forever
		wc := qp.newWC(ring.recvWQE(ring.index).WrId, verbs.WCFlushErr)
		ring.consume()
		qp.post(qp.recvCQ, &wc, true, true)
	}
}

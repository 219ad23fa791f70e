package engine

import (
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/mmap"
)

// responder is the receiving half of a QP (rxe_responder): it executes a peer's requests in the
// order of their PSNs, answers them, and completes receives. Packets go through these steps:
//
//	handle ─► checkPSN ─► checkSequence ─► checkRequest ─► execute ─► acknowledgement or answer
//	             │              └───────────────┴─────────────┴─────► refuse: NAK, or nothing
//	             └─► repeat, of executed requests
//
// Unlike a TCP receiver it keeps nothing that comes early, and does not see message boundaries in
// lengths but in opcodes. So its state is small: the expected PSN, the place in the message, and
// the answers that it may have to give again.
type responder struct {
	qp   *QP
	init *QPInit
	out  *out
	ring *Ring // the receive queue; nil with an SRQ

	psn       roce.PSN    // expected
	msn       uint32      // requests completed, which each answer tells
	opcode    roce.Opcode // of the previous packet of the message, if inMessage
	inMessage bool
	dropping  bool // UC: until the next message
	nakSent   bool // until the expected packet arrives
	reported  bool // EventCommEst

	received bool // a message, in this series of packets
	ack      ack

	recv receive
	held bool       // recv is of a message whose first packet found a page missing, and comes again
	src  netip.Addr // of the last message, for Completion

	writing writing
	history history
	reply   reply
	waiting []*packet // requests behind the reply
	paging  paging
}

// ack is the acknowledgement that is due. It is sent when a series of packets has been handled, so
// one answers all that were received together (IBA, 9.7.5.1.2).
type ack struct {
	due  bool
	of   roce.PSN
	next roce.PSN // after the last request that is acknowledged, not answered
}

// writing is the rest of the RDMA WRITE in progress.
type writing struct {
	va     uint64
	rkey   uint32
	left   uint32
	length uint32
}

// set applies attributes that have changed. The QP has rounded the number of READs.
func (r *responder) set(a *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.MaskMaxDestRDAtomic != 0 {
		// The attribute sets the number of resources, and a reply in progress belongs to an old
		// one.
		r.drop()
		r.history = history{list: make([]resource, r.qp.attr.MaxDestRDAtomic)}
	}
	if mask&verbs.MaskRQPSN != 0 {
		r.psn = roce.PSN(a.RQPSN) & roce.PSNMask
		r.ack.next = r.psn // an answer may cover the packets before it, none of which has been executed
	}
}

func (r *responder) reset() {
	if r.ring != nil {
		r.ring.reset()
	}
	r.drop()
	clear(r.history.list)
	*r = responder{qp: r.qp, init: r.init, out: r.out, ring: r.ring, psn: r.psn, history: history{list: r.history.list}}
}

// handle processes a request (rxe_receiver).
func (r *responder) handle(p *packet) {
	// A packet proves that the peer is ready to send, though its message that says so (RTU, of the
	// connection manager) may be lost. The program can pass the event on to the connection manager,
	// see package ibcm's CommEstablished.
	if r.qp.state == verbs.StateRTR && !r.reported && r.init.Type != verbs.UD {
		r.reported = true
		r.qp.report(verbs.EventCommEst)
	}
	// Answers have to come in the order of the requests, so whatever follows a READ waits until its
	// long answer has been sent.
	if r.reply.active {
		r.delay(p)
		return
	}
	r.handleNow(p)
}

// delay keeps a copy of a request until the reply in progress has been sent.
func (r *responder) delay(p *packet) {
	if len(r.waiting) == backlog {
		r.qp.dev.counters.add(outOfBuffer, 1)
		return // as a packet that the network has lost: the requester will repeat it
	}
	// Of a payload that is too long, enough is kept to be refused: a packet may have 64 KiB.
	c := r.qp.dev.getPacket(min(len(p.Payload), r.qp.mtu+1))
	buf := c.buf
	*c = *p
	c.buf = buf
	copy(buf, p.Payload)
	c.Payload = buf
	r.waiting = append(r.waiting, c)
}

func (r *responder) drop() {
	r.reply = reply{}
	for _, p := range r.waiting {
		r.qp.dev.putPacket(p)
	}
	clear(r.waiting)
	r.waiting = r.waiting[:0]
	r.ack.due = false
}

// handleNow validates a request in the order of rxe_responder, and executes it (IBA, 9.7.4, has the
// checks; for UD 9.8.3): the PSN first, since a duplicate is answered again whatever it asks for,
// then the sequence of opcodes, the operation and its resources, the length (IBA, 9.7.4.1.6), and
// last, where memory is used, the key (IBA, 9.7.4.1.5). The first check that fails decides the
// answer: see refuse.
func (r *responder) handleNow(p *packet) {
	fresh := r.checkPSN(p)
	if !fresh {
		return
	}
	f := r.checkSequence(p)
	if f == noFault {
		f = r.checkRequest(p)
	}
	if f == noFault {
		f = r.execute(p)
	}
	if f != noFault {
		r.refuse(p, f)
	}
}

// checkPSN reports whether a request is the expected one. It answers others (IBA, 9.7.5.1.3;
// check_psn). On RC a PSN behind the expected one tells of a loss: one NAK names the expected PSN,
// and no other is sent until that has arrived, as each would make the requester go back once more.
// A PSN before it is of a request that has been executed, whose answer the requester has not got.
// UC has no answers: a gap makes the rest of a message useless, and the next message is taken with
// whatever PSN it has. UD looks at no PSN.
func (r *responder) checkPSN(p *packet) bool {
	diff := p.PSN.Sub(r.psn)
	switch r.init.Type {
	case verbs.RC:
		switch {
		case diff > 0:
			if !r.nakSent {
				r.nakSent = true
				r.qp.dev.counters.add(outOfSequence, 1)
				r.sendNAK(roce.NAKSequence, r.psn)
			}
			return false
		case diff < 0:
			r.qp.dev.counters.add(duplicateRequests, 1)
			r.repeat(p)
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

// checkSequence checks that the packet continues the message in progress, or starts one: FIRST, any
// number of MIDDLE, LAST, all of the same operation, or ONLY (check_op_seq). Packets of RC are in
// order here, so that another sequence is the peer's mistake. On UC it is a loss.
func (r *responder) checkSequence(p *packet) fault {
	if r.init.Type == verbs.UD {
		return noFault
	}
	starts := p.Opcode.Has(roce.Starts)
	if !r.inMessage {
		if starts {
			return noFault
		}
		if r.init.Type == verbs.UC {
			r.dropping = true
			return faultDrop
		}
		return faultInvalid
	}
	// Messages of several packets are SENDs and WRITEs only: READs, atomics and FLUSHes are one
	// packet.
	const kinds = roce.IsSend | roce.IsWrite
	if !starts && p.Opcode.Flags()&kinds == r.opcode.Flags()&kinds {
		return noFault
	}
	if r.init.Type == verbs.RC {
		return faultInvalid
	}
	// UC: the rest of the message is lost. The receive of the broken message stays at the head of
	// the QP's queue, and the next message takes it. One of an SRQ has left its queue, and
	// completes with an error (classes D1 and E of do_class_d1e_error).
	r.inMessage = false
	switch {
	case !starts:
		r.dropping = true
		return faultDrop
	case r.init.SRQ != nil && r.recv.active:
		r.completeReceive(p, verbs.WCRemInvReqErr)
	}
	r.recv.active = false
	return noFault
}

// checkRequest checks rights, resources and lengths, and takes a receive request if one is
// needed.
func (r *responder) checkRequest(p *packet) fault {
	f := p.Opcode.Flags()
	// The QP's own rights come first: they hold for all memory. A key's rights are checked when it
	// is used.
	if !r.allowed(p, f) {
		if r.init.Type == verbs.UC {
			r.dropping = true
			return faultDrop
		}
		return faultInvalid
	}
	// A QP with MaxDestRDAtomic 0 has no place to remember an answer, so it serves no such
	// requests. It is the requester's task not to exceed other values (check_resource).
	if f&(roce.IsRead|roce.IsAtomic|roce.IsAtomicWrite) != 0 && len(r.history.list) == 0 {
		return faultInvalid
	}
	// A SEND takes its receive with the first packet, as that has data; a WRITE with immediate data
	// with the last, as only then something completes.
	if held := r.held && r.recv.active; f&roce.TakesReceive != 0 && !held {
		switch r.takeReceive() {
		case takeEmpty:
			return faultNotReady
		case takeMalformed:
			return faultReceive
		}
	}
	if f&roce.TakesReceive != 0 {
		r.held = false
	}
	if r.init.Type == verbs.UD {
		// A receive for datagrams begins with 40 bytes for the header (Annex A17.4.5.2). One that
		// is too short drops the datagram (C9-205).
		if uint64(len(p.Payload))+verbs.GRHSize > r.recv.room() {
			return faultLength
		}
		return noFault
	}
	if f&roce.HasPayload != 0 && !p.Opcode.PayloadFits(len(p.Payload), r.qp.mtu) {
		return faultLength
	}
	// No message has more than 2³¹ bytes (IBA, 9.4.3 and 9.4.4).
	if f&roce.HasRETH != 0 && p.RETH.Length > maxMessage {
		return faultLength
	}
	return noFault
}

// allowed checks the rights that the QP grants to its peer.
func (r *responder) allowed(p *packet, f roce.Flags) bool {
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
	return r.qp.attr.Access&need == need
}

func flushAccess(p *packet) (a verbs.Access) {
	if p.FETH.Placement&roce.FlushGlobal != 0 {
		a |= verbs.AccessFlushGlobal
	}
	if p.FETH.Placement&roce.FlushPersistent != 0 {
		a |= verbs.AccessFlushPersistent
	}
	return a
}

func (r *responder) execute(p *packet) fault {
	f := p.Opcode.Flags()
	switch {
	case f&roce.IsSend != 0:
		if fault := r.receiveData(p); fault != noFault {
			return fault
		}
	case f&roce.IsWrite != 0:
		if f&roce.Starts != 0 {
			r.qp.dev.counters.add(writeRequests, 1)
		}
		if fault := r.write(p, f); fault != noFault {
			return fault
		}
	case f&roce.IsRead != 0:
		r.qp.dev.counters.add(readRequests, 1)
		return r.read(p)
	case f&roce.IsAtomic != 0:
		r.qp.dev.counters.add(atomicRequests, 1)
		return r.atomic(p)
	case f&roce.IsAtomicWrite != 0:
		return r.atomicWrite(p)
	case f&roce.IsFlush != 0:
		return r.flushMemory(p)
	}
	// SEND with invalidate: the peer gives back the key that this side has lent it, before the
	// message is seen.
	if f&roce.HasIETH != 0 && !r.qp.invalidate(p.IETH) {
		return faultKey
	}
	// The message sequence number counts complete messages, where the PSN counts packets.
	if f&roce.Ends != 0 {
		r.msn++
	}
	// From here on the packet is a duplicate if it comes again.
	r.psn = p.PSN.Add(1)
	r.ack.next = r.psn
	r.opcode, r.inMessage = p.Opcode, f&roce.Ends == 0
	if f&roce.Completes != 0 && r.recv.active && !r.completeReceive(p, verbs.WCSuccess) {
		r.qp.setError() // rxe's class G: the CQ has overflowed
		return noFault
	}
	if r.init.Type == verbs.RC && p.AckReq { // later ones may be part of the same acknowledgement (IBA, 9.7.5.1.2)
		r.ack.due, r.ack.of = true, p.PSN
	}
	return noFault
}

// hopLimit is the GRH's: networks do not report the hop limit of received packets.
const hopLimit = 64

// receiveData copies the payload of a SEND, after the GRH if it is a datagram, so that the program
// can answer (Annex A17.4.5.2). Without a GRH there are 40 undefined bytes.
func (r *responder) receiveData(p *packet) fault {
	if r.init.Type == verbs.UD {
		var grh [verbs.GRHSize]byte
		if lids := r.qp.dev.cfg.LIDs; !lids.Contains(p.src) {
			g := roce.GRH{Src: p.src, Dst: p.dst, TrafficClass: p.tos, HopLimit: hopLimit, Length: p.Len(), ID: p.id, InfiniBand: lids.IsValid()}
			g.Put(&grh)
		}
		if f := r.scatter(grh[:]); f != noFault {
			return f
		}
	}
	return r.scatter(p.Payload)
}

func (r *responder) scatter(data []byte) fault {
	recv := &r.recv
	if len(data) == 0 {
		return noFault
	}
	if !recv.active {
		return faultReceive
	}
	if uint32(len(data)) > recv.length-recv.got {
		return faultRoom
	}
	switch r.qp.copySGL(recv.sges, &recv.cursor, data, true) {
	case copyMissing:
		if r.missing(PageFault{Request: true, ID: recv.id, Done: recv.got, Packet: uint32(len(data))}) {
			return faultPage
		}
		return faultReceive
	case copyInvalid:
		return faultReceive
	// The list has less room than the request claims.
	case copyEnd:
		return faultLength
	}
	recv.got += uint32(len(data))
	return noFault
}

// write copies the payload of an RDMA WRITE. Only the first packet has the address; from there on
// it advances. The key is looked up for each packet, as the program may revoke it in between.
func (r *responder) write(p *packet, f roce.Flags) fault {
	w := &r.writing
	if f&roce.HasRETH != 0 {
		*w = writing{va: p.RETH.VA, rkey: p.RETH.RKey, left: p.RETH.Length, length: p.RETH.Length}
	}
	// Length and opcodes have to end the message at the same byte.
	n := uint32(len(p.Payload))
	if n > w.left || f&roce.Ends != 0 != (n == w.left) {
		return faultLength
	}
	before := *w
	for data := p.Payload; len(data) > 0; {
		at := r.qp.remote(w.rkey, verbs.AccessRemoteWrite, w.va, uint64(w.left), uint64(len(data)))
		n, ok := at.copy(data, true)
		if !ok {
			done := w.length - w.left
			if at.paged && r.missing(PageFault{Key: w.rkey, Addr: w.va - uint64(done), Length: w.length, Write: true, Done: done, Packet: uint32(len(data))}) {
				*w = before
				return faultPage
			}
			return faultAccess
		}
		data = data[n:]
		w.va += uint64(n)
		w.left -= uint32(n)
	}
	return noFault
}

// completeReceive completes the receive request in use. It reports false if the CQ has no room.
// Completions with errors count as solicited: a program that sleeps until such a message comes must
// hear of them.
func (r *responder) completeReceive(p *packet, status verbs.WCStatus) bool {
	recv := &r.recv
	wc := r.qp.newWC(recv.id, status)
	if status == verbs.WCSuccess {
		f := p.Opcode.Flags()
		r.qp.dev.counters.add(receives, 1)
		r.received = true
		wc.Opcode, wc.ByteLen = uint32(verbs.WCRecv), recv.got
		if f&roce.IsWrite != 0 {
			// A WRITE uses a receive only to announce itself: its data is elsewhere.
			wc.Opcode, wc.ByteLen = uint32(verbs.WCRecvRDMAImm), r.writing.length
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
		wc.PortNum = r.qp.attr.Port
	}
	r.endReceive()
	if r.init.RecvCQ.deliver != nil {
		r.src = p.src
	}
	return r.qp.post(r.init.RecvCQ, &wc, p.Solicited || status != verbs.WCSuccess, true)
}

// wcWithInvalidate is IB_WC_WITH_INVALIDATE of the kernel's internal enum ib_wc_flags, which rxe
// uses instead of the user interface's.
const wcWithInvalidate = 1 << 2

// endReceive frees the receive request in use. The QP's own queue keeps it until now, so that a
// message that breaks off on UC leaves it for the next; an SRQ's was copied and removed when it was
// taken.
func (r *responder) endReceive() {
	r.recv.active, r.held = false, false
	if r.init.SRQ == nil {
		r.ring.consume()
	}
}

// flush completes all receive requests of the QP as flushed. The SRQ's stay for its other QPs,
// except one that a message was using, which has left the queue.
func (r *responder) flush() {
	recv := &r.recv
	if r.init.SRQ != nil {
		if recv.active {
			recv.active = false
			wc := r.qp.newWC(recv.id, verbs.WCFlushErr)
			r.qp.post(r.init.RecvCQ, &wc, true, true)
		}
		return
	}
	recv.active = false
	ring := r.ring
	for n := 0; n < maxQPWR && !ring.empty(r.init.RefillRecv); n++ { // the program may add more forever
		wc := r.qp.newWC(ring.recvWQE(ring.index).WrId, verbs.WCFlushErr)
		ring.consume()
		r.qp.post(r.init.RecvCQ, &wc, true, true)
	}
}

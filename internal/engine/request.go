package engine

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/mmap"
)

// sendQueue is the send queue of a QP. Requests are executed, and complete, in their order.
//
//	ring.index        next        loaded        producer
//	    │ sent or done │ to be sent │ not looked at │
//
// After a loss next goes back to ring.index.
type sendQueue struct {
	ring     *Ring
	requests []request // by index
	sges     []abi.RxeSge
	maxSGE   int
	device   bool   // has OpDevice
	next     uint32 // the request to be sent next
	loaded   uint32 // the first one that has not been loaded
}

// request is the engine's copy of a work request.
type request struct {
	id      uint64
	op      uint32 // enum ib_uverbs_wr_opcode
	info    opInfo
	flags   uint32
	ex      [4]byte // immediate, as on the wire
	key     uint32  // to invalidate
	remote  uint64
	rkey    uint32
	compare uint64
	swap    uint64
	flush   roce.FETH
	ud      datagram
	dest    Destination // with QPInit.Dynamic
	bind    binding
	inline  bool
	length  uint32
	sges    []abi.RxeSge
	progress
}

// progress is how far a request has come. Its packets have the PSNs from first to last; a READ has
// the PSNs of its answer, so got advances with responses where sent advances with requests.
type progress struct {
	state    requestState
	status   verbs.WCStatus // of a request that failed here
	first    roce.PSN
	last     roce.PSN
	sent     uint32 // bytes sent or, of a READ, requested
	got      uint32 // bytes of a READ that have arrived
	cursor   cursor
	parts    [2]uint32 // ends of the requested parts of a READ that have not arrived
	numParts int
}

// datagram is the destination of a UD request.
type datagram struct{ qpn, qkey, ah uint32 }

type requestState uint8

const (
	requestPosted  requestState = iota
	requestSending              // some packets have been sent
	requestSent                 // all packets have been sent
	requestDone                 // complete without an answer
)

type opInfo struct {
	kind   opKind
	types  uint8 // QP types that have it, as bits
	wc     uint32
	imm    bool
	inv    bool
	inline bool // takes inline data
}

type opKind uint8

const (
	opUnknown opKind = iota
	opSend
	opWrite
	opRead
	opAtomic
	opAtomicWrite
	opFlush
	opLocal
)

const (
	bitRC = 1 << verbs.RC
	bitUC = 1 << verbs.UC
	bitUD = 1 << verbs.UD

	sendInline = 1 << 3 // IB_SEND_INLINE

	// OpDevice is the opcode of a request for QPInit.Execute. The kernel's interface has no opcode
	// as large; only QPs with Execute have it.
	OpDevice = 0x100
)

var ops = [...]opInfo{
	abi.IB_UVERBS_WR_RDMA_WRITE:           {opWrite, bitRC | bitUC, abi.IB_UVERBS_WC_RDMA_WRITE, false, false, true},
	abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM:  {opWrite, bitRC | bitUC, abi.IB_UVERBS_WC_RDMA_WRITE, true, false, true},
	abi.IB_UVERBS_WR_SEND:                 {opSend, bitRC | bitUC | bitUD, abi.IB_UVERBS_WC_SEND, false, false, true},
	abi.IB_UVERBS_WR_SEND_WITH_IMM:        {opSend, bitRC | bitUC | bitUD, abi.IB_UVERBS_WC_SEND, true, false, true},
	abi.IB_UVERBS_WR_SEND_WITH_INV:        {opSend, bitRC, abi.IB_UVERBS_WC_SEND, false, true, true},
	abi.IB_UVERBS_WR_RDMA_READ:            {opRead, bitRC, abi.IB_UVERBS_WC_RDMA_READ, false, false, false},
	abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP:   {opAtomic, bitRC, abi.IB_UVERBS_WC_COMP_SWAP, false, false, false},
	abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD: {opAtomic, bitRC, abi.IB_UVERBS_WC_FETCH_ADD, false, false, false},
	abi.IB_UVERBS_WR_LOCAL_INV:            {opLocal, bitRC, abi.IB_UVERBS_WC_LOCAL_INV, false, false, false},
	abi.IB_UVERBS_WR_BIND_MW:              {opLocal, bitRC | bitUC, abi.IB_UVERBS_WC_BIND_MW, false, false, false},
	abi.IB_UVERBS_WR_FLUSH:                {opFlush, bitRC, abi.IB_UVERBS_WC_FLUSH, false, false, false},
	abi.IB_UVERBS_WR_ATOMIC_WRITE:         {opAtomicWrite, bitRC, abi.IB_UVERBS_WC_ATOMIC_WRITE, false, false, false},
}

// hasCredit reports whether the operation takes one of the credits for READs and atomics.
func (k opKind) hasCredit() bool { return k == opRead || k == opAtomic || k == opAtomicWrite }

// makeRequests makes the engine's part of a send queue.
func (q *sendQueue) makeRequests(maxSGE int) {
	slots := q.ring.Cap() + 1
	q.requests = make([]request, slots)
	q.maxSGE = maxSGE
	q.sges = make([]abi.RxeSge, slots*maxSGE)
}

// load copies request i from the ring and checks it. The program may change the ring at any time,
// so only inline data, whose place is checked, is read again. It returns the status of an invalid
// request.
func (q *sendQueue) load(i uint32, typ verbs.QPType) verbs.WCStatus {
	w := q.ring.sendWQE(i)
	r := &q.requests[i]
	*r = request{
		id: w.Wr.WrId, op: w.Wr.Opcode, flags: w.Wr.SendFlags, ex: [4]byte(mmap.Bytes(w.Wr.Ex.ImmData())),
		length: w.Dma.Length,
	}
	if r.op == OpDevice && q.device {
		r.info.kind = opLocal
		return verbs.WCSuccess
	}
	// Not all transports have all operations: UD has only SEND, UC has nothing that needs an
	// answer.
	if r.op >= uint32(len(ops)) || ops[r.op].types&(1<<typ) == 0 {
		return verbs.WCLocQPOpErr
	}
	r.info = ops[r.op]
	r.inline = r.flags&sendInline != 0
	n := w.Dma.NumSge
	room := uint32(q.ring.size - sendWQESize)
	switch {
	case r.info.kind == opLocal, r.info.kind == opFlush:
		n = 0
	case r.info.kind == opAtomicWrite:
		n, r.inline = 0, true
		if r.length != 8 || room < 8 {
			return verbs.WCLocQPOpErr
		}
	case r.inline:
		n = 0
		if !r.info.inline || r.length > room {
			return verbs.WCLocQPOpErr
		}
	case n > uint32(q.maxSGE), r.length > maxMessage, r.info.kind == opAtomic && r.length != 8:
		return verbs.WCLocQPOpErr
	}
	r.sges = q.sges[int(i)*q.maxSGE:][:n]
	for k := range r.sges {
		r.sges[k] = q.ring.sge(i, sendWQESize, k)
	}
	if typ == verbs.UD {
		ud := w.Wr.Wr.Ud()
		r.ud = datagram{ud.RemoteQpn, ud.RemoteQkey, ud.AhNum}
		return verbs.WCSuccess
	}
	if q.ring.dests != nil {
		r.dest = q.ring.dests[i]
	}
	r.loadOperation(w)
	return verbs.WCSuccess
}

func (r *request) loadOperation(w *abi.RxeSendWqe) {
	switch r.info.kind {
	case opSend:
		r.key = *w.Wr.Ex.InvalidateRkey()
	case opWrite, opRead, opAtomicWrite:
		rdma := w.Wr.Wr.Rdma()
		r.remote, r.rkey = rdma.RemoteAddr, rdma.Rkey
	case opAtomic:
		a := w.Wr.Wr.Atomic()
		r.remote, r.rkey, r.compare, r.swap = a.RemoteAddr, a.Rkey, a.CompareAdd, a.Swap
	case opFlush:
		f := w.Wr.Wr.Flush()
		r.remote, r.rkey = f.RemoteAddr, f.Rkey
		r.flush = roce.FETH{Placement: f.Type & 15, Selectivity: f.Level & 3}
	case opLocal:
		r.key = *w.Wr.Ex.InvalidateRkey()
		if r.op == abi.IB_UVERBS_WR_BIND_MW {
			mw := w.Wr.Wr.Mw()
			r.bind = binding{
				addr: mw.Addr, length: mw.Length, lkey: mw.MrLkey, key: mw.MwRkey, newKey: mw.Rkey,
				access: verbs.Access(mw.Access),
			}
		}
	}
}

func (r *request) packets(mtu int) int {
	switch r.info.kind {
	case opSend, opWrite, opRead:
		return max(1, int((uint64(r.length)+uint64(mtu)-1)/uint64(mtu)))
	}
	return 1
}

func (r *request) started() bool { return r.state == requestSending || r.state == requestSent }

// opcode returns the opcode of a packet of the request.
func (r *request) opcode(t roce.Transport, first, last bool) roce.Opcode {
	if t == roce.UD {
		if r.info.imm {
			return roce.UDSendOnlyImm
		}
		return roce.UDSendOnly
	}
	var o roce.Opcode
	switch r.info.kind {
	case opSend:
		if o = roce.RCSendFirst + place(first, last, r.info.imm); last && r.info.inv {
			o = roce.RCSendLastInvalidate
			if first {
				o = roce.RCSendOnlyInvalidate
			}
		}
	case opWrite:
		o = roce.RCWriteFirst + place(first, last, r.info.imm)
	case opRead:
		o = roce.RCReadRequest
	case opAtomicWrite:
		o = roce.RCAtomicWrite
	case opFlush:
		o = roce.RCFlush
	case opAtomic:
		if o = roce.RCFetchAdd; r.op == abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP {
			o = roce.RCCompareSwap
		}
	}
	return roce.Opcode(t) | o
}

// place returns the place of a packet in its message, from FIRST: SEND and WRITE have it in the same
// order in their opcodes.
func place(first, last, imm bool) roce.Opcode {
	o := roce.RCSendLast
	switch {
	case first && !last:
		return roce.RCSendFirst
	case !last:
		return roce.RCSendMiddle
	case first:
		o = roce.RCSendOnly
	}
	if imm {
		o++ // with immediate data
	}
	return o
}

//go:build linux

package connectx

import (
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/mmap"
)

const inlineBit = 1 << 31 // of a data segment's length

// sendOps are the opcodes of the engine for those of WQEs.
var sendOps = map[byte]uint32{
	ifc.OpcodeSendInval: abi.IB_UVERBS_WR_SEND_WITH_INV, ifc.OpcodeRdmaWrite: abi.IB_UVERBS_WR_RDMA_WRITE,
	ifc.OpcodeRdmaWriteImm: abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM, ifc.OpcodeSend: abi.IB_UVERBS_WR_SEND,
	ifc.OpcodeSendImm: abi.IB_UVERBS_WR_SEND_WITH_IMM, ifc.OpcodeRdmaRead: abi.IB_UVERBS_WR_RDMA_READ,
	ifc.OpcodeAtomicCs: abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP, ifc.OpcodeAtomicFa: abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
	ifc.OpcodeNop: engine.OpDevice, ifc.OpcodeUmr: engine.OpDevice,
}

// invalidOp is no opcode of the engine: a malformed request fails with WCLocQPOpErr after those before
// it.
const invalidOp = 0xffff

// sender is the send queue of a QP. It translates requests for the engine: refill and execute run under
// the engine's lock of the QP, which guards ring.taken and the paths.
type sender struct {
	env      *env
	num      uint32 // of the QP
	datagram bool   // of the engine's type UD
	dynamic  bool   // of a DCI
	ring
	shown   shown
	qkey    atomic.Uint32 // of the QP's context
	paths   paths
	updates updater
}

// show handles a doorbell.
func (q *sender) show(b []byte, one bool) {
	q.shown.doorbell(b, one, &q.ring)
	q.snapshot()
}

// reset forgets the posted requests. The engine calls nothing in the state Reset.
func (q *sender) reset() {
	q.taken = 0
	q.shown.reset()
}

// close unmaps r, the ring that has the requests. A doorbell may have found the QP before, and ring
// later.
func (q *sender) close(r *ring) {
	q.shown.mu.Lock()
	defer q.shown.mu.Unlock()
	q.shown.closed, q.shown.recorded = true, q.shown.end
	r.close()
}

// snapshot records the requests that doorbells have shown, as they are now.
func (q *sender) snapshot() {
	if q.env.recorder == nil {
		return
	}
	s := &q.shown
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.recorded != s.end {
		var wqe [maxWQE]byte
		n := s.end - s.recorded
		size := q.request(&wqe, s.recorded, n)
		q.env.record(Event{Kind: RecordWQE, Number: q.num, Offset: int(s.recorded), In: wqe[:size]})
		if size > 0 {
			n = blocksOf(size)
		}
		s.recorded += n
	}
}

// refill translates the requests that doorbells have shown. The engine's QP is locked.
func (q *sender) refill(r *engine.Ring) {
	if q.Count == 0 {
		return
	}
	q.paths.refresh()
	for {
		n := q.shown.to() - q.taken // blocks
		if n == 0 {
			return
		}
		w, sges, inline := r.NextSend()
		if w == nil {
			return
		}
		var wqe [maxWQE]byte
		size := q.request(&wqe, q.taken, n)
		agree := q.shown.use(q.taken, wqe[:size])
		switch {
		case size == 0:
			q.refuse("the size is 0, or more than the guest has posted")
		case !agree:
			q.refuse("the BlueFlame copy differs from the request in memory")
		}
		w.Wr, w.Dma = abi.RxeSendWr{}, abi.RxeDmaInfo{}
		w.Wr.WrId = sendID(q.taken, wqe[ctrlOpcode])
		to := engine.Destination{}
		if size == 0 || !agree || !q.translate(w, wqe[:size], sges, inline, &to) {
			w.Wr.Opcode = invalidOp
		}
		if q.dynamic {
			r.Destine(to)
		}
		if size > 0 { // otherwise nothing tells where the next request begins
			n = blocksOf(size)
		}
		q.taken += n
		r.Publish()
	}
}

// translate makes the engine's request from a WQE, and the destination of a DCI's. It reports false
// if the WQE is malformed.
func (q *sender) translate(w *abi.RxeSendWqe, wqe []byte, sges []abi.RxeSge, inline []byte, to *engine.Destination) bool {
	opcode, flags := wqe[ctrlOpcode], wqe[ctrlFlags]
	op, known := sendOps[opcode]
	switch {
	case !known:
		return q.refuse("unknown opcode")
	case wqe[0] != 0:
		return q.refuse("opcode modifier")
	case be.Uint16(wqe[ctrlIndex:]) != q.taken:
		return q.refuse("the control segment has another index")
	case be.Uint32(wqe[ctrlQPNDS:])>>8 != q.num:
		return q.refuse("the control segment names another QP")
	case wqe[7]&0xc0 != 0, flags&0x11 != 0, flags&0x0c == 0x04:
		return q.refuse("reserved bits of the control segment")
	}
	w.Wr.Opcode = op
	if flags&ifc.WqeCtrlCqUpdate != 0 {
		w.Wr.SendFlags |= uint32(verbs.SendSignaled)
	}
	if flags&ifc.WqeCtrlSolicited != 0 {
		w.Wr.SendFlags |= uint32(verbs.SendSolicited)
	}
	// mlx5_ib sets FenceInitiatorSmall behind a UMR request, which the engine executes in order anyway.
	// The larger ones wait for READs and atomics as well (wr.c).
	if fence := flags & 0xe0; fence > ifc.FenceInitiatorSmall {
		w.Wr.SendFlags |= uint32(verbs.SendFence)
	}
	switch opcode {
	case ifc.OpcodeNop:
		return true
	case ifc.OpcodeUmr: // the engine hands the copy to execute
		return q.updates.wellFormed(inline[:copy(inline, wqe)])
	case ifc.OpcodeSendInval:
		*w.Wr.Ex.InvalidateRkey() = be.Uint32(wqe[ctrlImm:])
	case ifc.OpcodeSendImm, ifc.OpcodeRdmaWriteImm:
		copy(mmap.Bytes(w.Wr.Ex.ImmData()), wqe[ctrlImm:])
	}
	rest, ok := wqe[segment:], true
	take := func(n int) (b []byte) {
		if len(rest) < n {
			ok = ok && q.refuse("the request ends within a segment")
			return make([]byte, n)
		}
		b, rest = rest[:n], rest[n:]
		return b
	}
	if q.dynamic {
		if av := take(avSize); ok {
			if *to, ok = q.target([avSize]byte(av)); !ok {
				return q.refuse("the address vector leads nowhere")
			}
		}
	}
	switch opcode {
	case ifc.OpcodeRdmaWrite, ifc.OpcodeRdmaWriteImm, ifc.OpcodeRdmaRead:
		b := take(segment)
		*w.Wr.Wr.Rdma() = abi.RxeSendWrWrRdma{RemoteAddr: be.Uint64(b), Rkey: be.Uint32(b[8:])}
	case ifc.OpcodeAtomicCs, ifc.OpcodeAtomicFa: // struct mlx5_wqe_atomic_seg is behind the address
		b := take(2 * segment)
		*w.Wr.Wr.Atomic() = abi.RxeSendWrWrAtomic{RemoteAddr: be.Uint64(b), Rkey: be.Uint32(b[8:]), CompareAdd: be.Uint64(b[16:])}
		if opcode == ifc.OpcodeAtomicCs {
			w.Wr.Wr.Atomic().Swap, w.Wr.Wr.Atomic().CompareAdd = be.Uint64(b[16:]), be.Uint64(b[24:])
		}
	}
	if q.datagram {
		if opcode != ifc.OpcodeSend && opcode != ifc.OpcodeSendImm {
			return q.refuse("the opcode is not for a UD QP")
		}
		if av := take(avSize); ok && !q.address(w.Wr.Wr.Ud(), [avSize]byte(av)) {
			return q.refuse("the address vector leads nowhere")
		}
	}
	return ok && q.data(w, rest, sges, inline)
}

// refuse records why the request at taken is malformed, which its completion does not tell: all such
// requests have one syndrome. It returns false, for its callers to return.
func (q *sender) refuse(reason string) bool {
	q.env.record(Event{Kind: RecordRefusal, Number: q.num, Offset: int(q.taken), Reason: reason})
	return false
}

// data translates the data segments. A request has inline data or a list of memory, not both.
func (q *sender) data(w *abi.RxeSendWqe, rest []byte, sges []abi.RxeSge, inline []byte) bool {
	got := 0
	for len(rest) >= segment && be.Uint32(rest)&inlineBit != 0 {
		n := int(be.Uint32(rest) & 0x3ff)
		room := (4 + n + segment - 1) &^ (segment - 1)
		if be.Uint32(rest)&^inlineBit > 0x3ff || room > len(rest) || got+n > len(inline) {
			return q.refuse("inline data is longer than the request")
		}
		got += copy(inline[got:], rest[4:4+n])
		rest = rest[room:]
		w.Wr.SendFlags |= sendInline
	}
	if w.Wr.SendFlags&sendInline != 0 {
		w.Dma.Length, w.Dma.Resid = uint32(got), uint32(got)
		return len(rest) == 0 || q.refuse("another segment behind inline data")
	}
	return gatherList(&w.Dma, sges, rest) || q.refuse("inline data behind another segment")
}

const sendInline = 1 << 3 // IB_SEND_INLINE

// gatherList translates a list of data segments up to its end (struct mlx5_wqe_data_seg). It reports
// false for inline data. A length of more than 4 GiB becomes 4 GiB - 1, which exceeds the longest
// message, 2 GiB, as well.
func gatherList(dma *abi.RxeDmaInfo, sges []abi.RxeSge, list []byte) bool {
	var total uint64
	n := 0
	for ; len(list) >= segment && n < len(sges); list = list[segment:] {
		size, key := be.Uint32(list), be.Uint32(list[4:])
		if key == reservedLKey && size == 0 || key == terminateLKey {
			break
		}
		if size&inlineBit != 0 {
			return false
		}
		if size == 0 {
			size = 1 << 31 // as in hardware. Drivers leave out empty segments.
		}
		sges[n] = abi.RxeSge{Addr: be.Uint64(list[8:]), Length: size, Lkey: key}
		total += uint64(size)
		n++
	}
	dma.NumSge, dma.Length = uint32(n), uint32(min(total, 1<<32-1))
	dma.Resid = dma.Length
	return true
}

// Offsets in an address vector, struct mlx5_av.
const (
	avSize    = 48
	avQKey    = 0
	avQPN     = 8
	avLID     = 14
	avTClass  = 26
	avHops    = 27
	avGRHFlow = 28 // GRH in bit 30, index of the GID in bits 20 to 27, flow label
	avGID     = 32

	extendedAV = 1 << 31 // of dqp_dct: the vector has its full size
)

// address fills in the destination of a datagram. It keeps the engine's address handle for later
// datagrams on the same path.
func (q *sender) address(to *abi.RxeSendWrWrUd, av [avSize]byte) bool {
	qpn := be.Uint32(av[avQPN:])
	if qpn&extendedAV == 0 || qpn&0x7f000000 != 0 {
		return false
	}
	to.RemoteQpn, to.RemoteQkey = qpn&0xffffff, be.Uint32(av[avQKey:])
	if to.RemoteQkey&(1<<31) != 0 { // a controlled Q_Key stands for the QP's own (IBTA vol. 1, 10.2.5)
		to.RemoteQkey = q.qkey.Load()
	}
	ah := q.handle(av)
	if ah == nil {
		return false
	}
	to.AhNum = ah.Num()
	return true
}

// handle returns the engine's handle of the path in an address vector, or nil if it leads nowhere.
func (q *sender) handle(av [avSize]byte) *engine.AH {
	path := av
	clear(path[:avQPN+4]) // without the Q_Key and the QP
	ah := q.paths.ahs[path]
	if ah == nil {
		flow := be.Uint32(av[avGRHFlow:])
		var err error
		ah, err = q.paths.pd.CreateAH(q.paths.vector(av[avGID:], be.Uint16(av[avLID:]), flow&(1<<30) != 0, uint8(flow>>20), av[avTClass], av[avHops]))
		if err != nil {
			return nil
		}
		q.paths.ahs[path] = ah
	}
	return ah
}

// paths are the engine's address handles for the paths of datagrams.
type paths struct {
	*addressing
	pd   *engine.PD
	ahs  map[[avSize]byte]*engine.AH
	made uint32 // gidChanges when they were made
}

// maxPaths bounds the address handles of a QP.
const maxPaths = 256

// refresh destroys the handles when there are many, or the GIDs have changed. No request uses one: the
// engine calls refill when it has sent all others.
func (p *paths) refresh() {
	if changes := p.gidChanges.Load(); len(p.ahs) >= maxPaths || p.made != changes {
		p.forget()
		p.made = changes
	}
}

func (p *paths) forget() {
	for _, ah := range p.ahs {
		ah.Destroy()
	}
	clear(p.ahs)
}

// execute executes a NOP, or a UMR request from translate's copy.
func (q *sender) execute(id uint64, wqe []byte) verbs.WCStatus {
	if byte(id>>idOpcode) == ifc.OpcodeUmr {
		return q.updates.execute(wqe[:int(wqe[ctrlQPNDS+3]&0x3f)*segment])
	}
	return verbs.WCSuccess
}

// receiver is the receive queue of a QP.
type receiver struct{ ring }

// refill translates the receives that the doorbell record counts. The engine's QP is locked.
func (q *receiver) refill(r *engine.Ring) {
	if q.Count == 0 {
		return
	}
	for range q.waiting() {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		*w = abi.RxeRecvWqe{WrId: uint64(q.taken)}
		if !gatherList(&w.Dma, sges, q.At(uint32(q.taken))) {
			w.Dma.NumSge = 1 << 16 // malformed: the engine fails the receive
		}
		q.taken++
		r.Publish()
	}
}

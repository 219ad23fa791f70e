//go:build linux

package connectx

import (
	"net"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

const (
	maxFrame   = 10 << 10 // bound of a frame with the largest MTU
	insertVLAN = 1 << 15  // in the size of the inline header: MLX5_ETH_WQE_INSERT_VLAN
)

// attach connects the adapter with a wire.
func (e *ethernet) attach(w *wire.Wire, mac net.HardwareAddr) {
	e.wire = w.Attach(mac, e.receive, func() { e.discards.Add(1) })
}

func (e *ethernet) detach() {
	if e.wire != nil {
		e.wire.Detach()
	}
}

// doorbell handles a doorbell of a send queue: it executes the requests that the doorbell shows.
func (e *ethernet) doorbell(q *sendQueue, b []byte, one bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReady {
		return
	}
	q.shown.doorbell(b, one, &q.ring)
	for end := q.shown.to(); q.head != end; {
		wqe, ok := e.request(q, end-q.head)
		if !ok || !e.execute(q, wqe) {
			q.fail(cqeRequestError, syndromes[verbs.WCLocQPOpErr])
			return
		}
		if wqe[11]&ifc.WqeCtrlCqUpdate != 0 {
			var c cqe
			be.PutUint16(c[cqeCounter:], q.head)
			be.PutUint32(c[cqeOpQPN:], uint32(wqe[3])<<24|q.num)
			be.PutUint64(c[cqeTime:], e.env.clock())
			if !q.cq.put(&c, cqeRequest, false) {
				q.state = stateError
				return
			}
		}
		q.head += blocksOf(len(wqe))
	}
}

// fail completes the request at the head with an error, and moves the queue to the error state.
func (q *ethQueue) fail(op, syndrome byte) {
	q.state = stateError
	var c cqe
	be.PutUint16(c[cqeCounter:], q.head)
	be.PutUint32(c[cqeOpQPN:], q.num)
	c[cqeSyndrome] = syndrome
	q.cq.put(&c, op, true)
}

// request returns a copy of the request at the head, where the guest has posted blocks. It reports
// false if it is malformed.
func (e *ethernet) request(q *sendQueue, blocks uint16) (wqe []byte, ok bool) {
	var b [maxWQE]byte
	if wqe = b[:q.ring.request(&b, q.head, blocks)]; len(wqe) == 0 {
		return nil, false
	}
	e.env.record(Event{Kind: RecordWQE, Number: q.num, Offset: int(q.head), In: wqe})
	// The control segment names its queue and its index.
	return wqe, q.shown.use(q.head, wqe) && be.Uint32(wqe[4:])>>8 == q.num && be.Uint16(wqe[1:]) == q.head
}

// execute executes a request. It reports false if the request is malformed or not supported.
func (e *ethernet) execute(q *sendQueue, wqe []byte) bool {
	switch wqe[3] {
	case ifc.OpcodeNop:
		return true
	case ifc.OpcodeSend, ifc.OpcodeLso:
	default:
		return false
	}
	if len(wqe) < 32 {
		return false
	}
	// mlx5e sends frames of its MTU, or up to 64 KiB to be segmented.
	limit := maxFrame
	if wqe[3] == ifc.OpcodeLso {
		limit = 1<<logMaxLSO + 256 // the headers
	}
	// The Ethernet segment, struct mlx5_wqe_eth_seg: flags for checksums at 4, the segment size at 6,
	// and at 12 either a VLAN tag, or the size of an inline header and the header itself.
	eth := wqe[16:]
	flags, size := eth[4], int(be.Uint16(eth[12:]))
	frame := make([]byte, 0, 2048)
	vlan, rest := []byte(nil), wqe[32:]
	if size&insertVLAN != 0 {
		vlan, size = []byte{wire.TypeVLAN >> 8, wire.TypeVLAN & 0xff, eth[14], eth[15]}, 0
	}
	if size > 0 {
		if size > len(eth)-wire.EtherSize {
			return false
		}
		frame = append(frame, eth[14:14+size]...)
		rest = wqe[16+(14+size+15)/16*16:]
	}
	for len(rest) >= 16 {
		const inline = 1 << 31
		if n := be.Uint32(rest); n&inline != 0 {
			k := int(n & 0x3ff)
			if 4+k > len(rest) {
				return false
			}
			frame = append(frame, rest[4:4+k]...)
			rest = rest[min(len(rest), (4+k+15)/16*16):]
			continue
		} else if int(n) > limit || len(frame)+int(n) > limit {
			return false
		} else if n > 0 {
			at := len(frame)
			frame = append(frame, make([]byte, n)...)
			if !e.keys.physical(be.Uint32(rest[4:]), q.pd, false) || e.env.mem.ReadAt(frame[at:], be.Uint64(rest[8:])) != nil {
				return false
			}
		}
		rest = rest[16:]
	}
	if wqe[3] == ifc.OpcodeLso {
		return e.segment(frame, size, int(be.Uint16(eth[6:])&0x3fff))
	}
	if len(frame) < wire.EtherSize {
		return false
	}
	if vlan != nil {
		frame = append(frame[:12:12], append(vlan, frame[12:]...)...)
	}
	wire.FillChecksums(frame, flags&ifc.EthWqeL3Csum != 0, flags&ifc.EthWqeL4Csum != 0)
	e.send(frame)
	return true
}

// segment sends the data behind a TCP header in frames of mss bytes of data each (TCP segmentation
// offload). It reports false if the header is not of Ethernet, IP and TCP alone.
func (e *ethernet) segment(frame []byte, header, mss int) bool {
	if header < wire.EtherSize || header > len(frame) || mss == 0 || header+min(mss, len(frame)) > maxFrame {
		return false
	}
	template, data := frame[:header:header], frame[header:]
	at, _ := wire.Network(template)
	if header-at < 40 { // IPv4 and TCP without options
		return false
	}
	setIPSize(template[at:]) // the driver leaves it to the adapter
	h := wire.Parse(template)
	if h.Proto != 6 || h.ChecksumAt() == 0 || h.L4+int(template[h.L4+12]>>4)*4 != header {
		return false
	}
	const fin, psh, cwr = 0x01, 0x08, 0x80
	for i := 0; len(data) > 0; i++ {
		n := min(mss, len(data))
		f := append(template, data[:n]...) // a copy, as template has no room
		setIPSize(f[at:])
		if h.L3Type == 2 {
			be.PutUint16(f[at+4:], be.Uint16(f[at+4:])+uint16(i))
		}
		tcp := f[h.L4:]
		be.PutUint32(tcp[4:], be.Uint32(tcp[4:])+uint32(i*mss))
		if n < len(data) {
			tcp[13] &^= fin | psh
		}
		if i > 0 {
			tcp[13] &^= cwr
		}
		wire.FillChecksums(f, true, true)
		e.send(f)
		data = data[n:]
	}
	return true
}

// setIPSize sets the length in the header of an IP packet of at least 40 bytes.
func setIPSize(ip []byte) {
	if ip[0]>>4 == 4 {
		be.PutUint16(ip[2:], uint16(len(ip)))
	} else {
		be.PutUint16(ip[4:], uint16(len(ip)-40))
	}
}

func (e *ethernet) send(frame []byte) {
	frame = append(frame, make([]byte, max(wire.MinFrame-len(frame), 0))...)
	e.tx[class(frame)].add(frame)
	if e.wire != nil && !e.port.isDown() {
		e.wire.Send(frame)
	}
}

// receive takes frames from the wire.
func (e *ethernet) receive(list [][]byte) {
	for _, frame := range list {
		if e.port.isDown() {
			continue
		}
		if q := e.queueOf(frame); q != nil && e.deliver(q, frame) {
			e.rx[class(frame)].add(frame)
		}
	}
}

// queueOf returns the receive queue for a frame, or nil.
func (e *ethernet) queueOf(frame []byte) *receiveQueue {
	t, ok := e.rqts.Get(e.rss.Load())
	if !ok {
		return nil
	}
	t.mu.Lock()
	num := t.rqns[wire.FlowHash(frame)%uint32(len(t.rqns))]
	t.mu.Unlock()
	q, _ := e.rqs.Get(num)
	return q
}

// deliver writes a frame to the receive at the head of a queue. It reports false if it drops the frame.
func (e *ethernet) deliver(q *receiveQueue, frame []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReady {
		return false
	}
	if q.head == uint16(q.ring.posted(recvRecord)) { // mlx5e's counter rx_out_of_buffer
		e.noBuffer.Add(1)
		return false
	}
	var c cqe
	l := wire.Inspect(frame)
	if l.VLAN && !q.keepVLAN {
		copy(c[cqeVLAN:cqeUserIndex], frame[wire.EtherSize:])
		c[cqeHeaderTypes] |= 1 // cqe_has_vlan
		frame = append(frame[:12:12], frame[12+wire.VLANSize:]...)
	}
	rest := frame
	// A receive is a list of data segments. It ends at an empty one, or one with the reserved key
	// (mlx5e_alloc_rq).
	for s := q.ring.At(uint32(q.head)); len(s) >= 16 && len(rest) > 0; s = s[16:] {
		n, key := int(be.Uint32(s)&0x7fffffff), be.Uint32(s[4:])
		if n == 0 || key == reservedLKey {
			break
		}
		n = min(n, len(rest))
		if !e.keys.physical(key, q.pd, true) || e.env.mem.WriteAt(rest[:n], be.Uint64(s[8:])) != nil {
			q.fail(cqeReceiveError, syndromes[verbs.WCLocProtErr])
			return false
		}
		rest = rest[n:]
	}
	if len(rest) > 0 { // longer than the receive
		q.fail(cqeReceiveError, syndromes[verbs.WCLocLenErr])
		return false
	}
	be.PutUint32(c[cqeByteCount:], uint32(len(frame)))
	be.PutUint16(c[cqeCounter:], q.head)
	be.PutUint32(c[cqeOpQPN:], q.num)
	be.PutUint64(c[cqeTime:], e.env.clock())
	// mlx5e_handle_csum takes the sum of all bytes behind the Ethernet header for CHECKSUM_COMPLETE,
	// and CQE_L2_OK, CQE_L3_OK and CQE_L4_OK for CHECKSUM_UNNECESSARY.
	be.PutUint16(c[cqeChecksum:], roce.OnesSum(frame[wire.EtherSize:], 0))
	c[cqeHeadersOK] = 1 | l.L3OK<<1 | l.L4OK<<2
	c[cqeHeaderTypes] |= l.L3Type<<2 | l.L4Type<<4 // CQE_L3_HDR_TYPE_*, CQE_L4_HDR_TYPE_*
	q.head++
	if !q.cq.put(&c, cqeSend, false) {
		q.state = stateError
		return false
	}
	return true
}

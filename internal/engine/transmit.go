package engine

import (
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

const (
	batchSize = 32
	maxPacket = roce.MaxHeaderSize + 4096 + 3 + roce.ICRCSize
)

// batch collects packets that a locked QP sends. It is sent when it is full and when the QP
// is unlocked. That of a receiver has acknowledgements of several QPs.
type batch struct {
	port *port
	pkts []netif.Packet
	bufs [batchSize][]byte
	own  []work // packets for QPs of the device
}

func newBatch() *batch {
	b := &batch{pkts: make([]netif.Packet, 0, batchSize)}
	mem := make([]byte, batchSize*maxPacket)
	for i := range b.bufs {
		b.bufs[i] = mem[i*maxPacket : i*maxPacket : (i+1)*maxPacket]
	}
	return b
}

// outgoing is a packet between begin and send.
type outgoing struct {
	path    *path
	pkt     *packet // for the device itself
	buf     []byte  // for the network
	payload []byte  // which the caller fills
}

// begin starts a packet with n bytes of payload.
func (qp *QP) begin(p *path, h *roce.Packet, n int) (o outgoing) {
	o.path = p
	h.Pad = roce.PadLen(n)
	h.PKey = defaultPKey
	if p.local {
		o.pkt = qp.dev.getPacket(n)
		o.pkt.Packet = *h
		o.payload = o.pkt.buf
		return o
	}
	b := qp.batchFor(p.port)
	o.buf = h.AppendHeaders(b.bufs[len(b.pkts)])
	head := len(o.buf)
	o.buf = o.buf[:head+n]
	o.payload = o.buf[head:]
	return o
}

// send sends the packet that begin has started with the headers h.
func (qp *QP) send(o *outgoing, h *roce.Packet) {
	d, p := qp.dev, o.path
	qp.sent++
	qp.sentBytes += h.HeaderLen() + len(o.payload)
	if pkt := o.pkt; pkt != nil {
		pkt.setAddrs(p)
		if to := d.qps.get(pkt.DestQP); to != nil {
			qp.own(work{to, pkt})
			return
		}
		if pkt.DestQP == 1 {
			d.receiveMAD(pkt)
		}
		d.putPacket(pkt)
		return
	}
	if p.remote.IsMulticast() {
		qp.sendToGroup(p, h, o.payload)
	}
	qp.sendBuffer(p, o.buf, len(o.payload))
}

// setAddrs completes a packet to the device itself.
func (pkt *packet) setAddrs(p *path) {
	pkt.src, pkt.dst, pkt.tos, pkt.id = p.port.addr, p.remote, p.av.TrafficClass, 0
	pkt.Payload = pkt.buf
}

func (qp *QP) sendBuffer(p *path, buf []byte, n int) {
	b := qp.batch
	buf = append(buf, roce.Padding(n)...)
	buf = p.flow.AppendICRC(buf, 0)
	b.pkts = append(b.pkts, netif.Packet{Src: p.src, Dst: p.dst, TOS: p.av.TrafficClass, Data: buf})
	if len(b.pkts) == batchSize {
		qp.flushBatch()
	}
}

// abort drops the packet that begin has started.
func (qp *QP) abort(o *outgoing) {
	if o.pkt != nil {
		qp.dev.putPacket(o.pkt)
	}
}

// own adds work for a QP of the device.
func (qp *QP) own(w work) {
	if qp.batch == nil {
		qp.batch = qp.dev.batches.Get().(*batch)
	}
	qp.batch.own = append(qp.batch.own, w)
}

// batchFor returns the batch for packets through a port.
func (qp *QP) batchFor(p *port) *batch {
	if qp.batch == nil {
		qp.batch = qp.dev.batches.Get().(*batch)
	}
	if qp.batch.port != p {
		qp.flushBatch()
		qp.batch.port = p
	}
	return qp.batch
}

// flush hands the packets to the network. It reports the first one that is too large for its link.
func (b *batch) flush(d *Device) (o oversize) {
	if len(b.pkts) == 0 {
		return o
	}
	if err := b.port.net.Send(b.pkts); err != nil {
		d.counters.add(sendErrors, 1)
		o = oversizeOf(b.pkts, err)
	}
	clear(b.pkts)
	b.pkts = b.pkts[:0]
	return o
}

// oversize is a packet of a QP that is too large for its link: its path MTU is, or the interface has
// a smaller MTU now. Sending it again does not help.
type oversize struct {
	known  bool
	opcode roce.Opcode
	psn    roce.PSN
}

// oversizeOf returns the packet that an error of a port is about.
func oversizeOf(pkts []netif.Packet, err error) (o oversize) {
	var e *netif.TooLargeError
	var p roce.Packet
	if !errors.As(err, &e) || e.Index < 0 || e.Index >= len(pkts) || p.Decode(pkts[e.Index].Data) != nil {
		return o
	}
	return oversize{true, p.Opcode, p.PSN}
}

// flushBatch hands the QP's packets to the network.
func (qp *QP) flushBatch() {
	if o := qp.batch.flush(qp.dev); !qp.oversize.known {
		qp.oversize = o
	}
}

// failOversize fails the request that a packet belonged to that was too large for its link. The
// peer's request fails if it was a response.
func (qp *QP) failOversize() {
	o := qp.oversize
	qp.oversize = oversize{}
	switch {
	case !o.known || qp.ended || qp.state == verbs.StateErr:
	case o.opcode.Has(roce.IsResponse):
		if qp.path != nil {
			qp.sendNAK(roce.NAKRemoteOp, o.psn)
			qp.setError()
			qp.report(verbs.EventQPFatal)
		}
	default:
		if r := qp.requestOf(o.psn); r != nil {
			r.state = requestSent // not done
			qp.completeDone()
			qp.failRequest(r, verbs.WCLocLenErr)
		}
	}
}

// requestOf returns the request that has sent a packet, unless it has completed.
func (qp *QP) requestOf(psn roce.PSN) *request {
	q := &qp.sq
	for i := q.ring.index; i != q.loaded; i = q.ring.next(i) {
		r := &q.requests[i]
		if r.state != requestPosted && r.info.kind != opLocal && !psn.Before(r.first) && !psn.After(r.last) {
			return r
		}
	}
	return nil
}

// lock locks the QP for work that may send packets.
func (qp *QP) lock() { qp.mu.Lock() }

// unlock sends the packets of the batch and unlocks the QP. The caller then calls
// Device.drain, unless its caller does.
func (qp *QP) unlock() {
	if qp.sent > 0 {
		qp.dev.counters.add(sentPackets, qp.sent)
		qp.dev.counters.add(sentBytes, qp.sentBytes+qp.sent*roce.ICRCSize)
		qp.sent, qp.sentBytes = 0, 0
	}
	if b := qp.batch; b != nil {
		qp.flushBatch()
		if qp.oversize.known {
			qp.failOversize() // may answer
			qp.flushBatch()
		}
		if len(b.own) > 0 {
			qp.dev.push(b.own)
			clear(b.own)
			b.own = b.own[:0]
		}
		b.port = nil
		qp.batch = nil
		qp.dev.batches.Put(b)
	}
	qp.mu.Unlock()
}

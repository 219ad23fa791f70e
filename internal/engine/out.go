package engine

import (
	"errors"

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

// out sends the packets of a locked QP. It is the only way to the network, and to QPs of the
// device.
type out struct {
	dev       *Device
	batch     *batch   // packets to send, while locked
	sent      int      // packets sent since it was locked
	sentBytes int      // of them, without padding and ICRC
	oversize  oversize // of batches since then
}

// outgoing is a packet between begin and send.
type outgoing struct {
	path    *path
	pkt     *packet // for the device itself
	buf     []byte  // for the network
	payload []byte  // which the caller fills
}

// begin starts a packet with n bytes of payload.
func (o *out) begin(p *path, h *roce.Packet, n int) (g outgoing) {
	g.path = p
	h.Pad = roce.PadLen(n)
	// All packets are of the default partition: RoCE has no subnet manager that would set up others
	// (Annex A17.7.1).
	h.PKey = roce.DefaultPKey
	if p.local {
		g.pkt = o.dev.getPacket(n)
		g.pkt.Packet = *h
		g.payload = g.pkt.buf
		return g
	}
	b := o.batchFor(p.port)
	g.buf = h.AppendHeaders(b.bufs[len(b.pkts)])
	head := len(g.buf)
	g.buf = g.buf[:head+n]
	g.payload = g.buf[head:]
	return g
}

// send sends the packet that begin has started with the headers h.
func (o *out) send(g *outgoing, h *roce.Packet) {
	d, p := o.dev, g.path
	o.sent++
	o.sentBytes += h.HeaderLen() + len(g.payload)
	if pkt := g.pkt; pkt != nil {
		pkt.setAddrs(p)
		if to := d.qps.get(pkt.DestQP); to != nil {
			o.own(work{to, pkt})
			return
		}
		if d.targets.get(pkt.DestQP) != nil {
			o.own(work{nil, pkt})
			return
		}
		if pkt.DestQP == roce.GSIQP {
			d.receiveMAD(pkt)
		}
		d.putPacket(pkt)
		return
	}
	if p.remote.IsMulticast() {
		o.sendToGroup(p, h, g.payload)
	}
	o.sendBuffer(p, g.buf, len(g.payload))
}

func (o *out) abort(g *outgoing) {
	if g.pkt != nil {
		o.dev.putPacket(g.pkt)
	}
}

func (pkt *packet) setAddrs(p *path) {
	pkt.src, pkt.dst, pkt.tos, pkt.id = p.port.addr, p.remote, p.av.TrafficClass, 0
	pkt.Payload = pkt.buf
}

func (o *out) sendBuffer(p *path, buf []byte, n int) {
	b := o.batch
	buf = append(buf, roce.Padding(n)...)
	// The kernel chooses the identification of an IPv4 packet when it sends it, and the ICRC covers
	// it: 0 stands for it until the port knows.
	buf = p.flow.AppendICRC(buf, 0)
	b.pkts = append(b.pkts, netif.Packet{Src: p.src, Dst: p.dst, TOS: p.av.TrafficClass, Data: buf})
	if len(b.pkts) == batchSize {
		o.flush()
	}
}

func (o *out) own(w work) {
	b := o.anyBatch()
	b.own = append(b.own, w)
}

func (o *out) anyBatch() *batch {
	if o.batch == nil {
		o.batch = o.dev.batches.Get().(*batch)
	}
	return o.batch
}

func (o *out) batchFor(p *port) *batch {
	if o.anyBatch().port != p {
		o.flush()
		o.batch.port = p
	}
	return o.batch
}

// flush hands the packets for the network to it.
func (o *out) flush() {
	if o.batch == nil {
		return
	}
	if big := o.batch.flush(o.dev); !o.oversize.known {
		o.oversize = big
	}
}

// close counts the packets and hands those for QPs of the device to its work queue.
func (o *out) close() {
	if o.sent > 0 {
		o.dev.counters.add(sentPackets, o.sent)
		o.dev.counters.add(sentBytes, o.sentBytes+o.sent*roce.ICRCSize)
		o.sent, o.sentBytes = 0, 0
	}
	b := o.batch
	if b == nil {
		return
	}
	if len(b.own) > 0 {
		o.dev.push(b.own)
		clear(b.own)
		b.own = b.own[:0]
	}
	b.port = nil
	o.batch = nil
	o.dev.batches.Put(b)
}

// flush hands the packets to the network. It reports the first one that is too large for its link.
func (b *batch) flush(d *Device) (o oversize) {
	if len(b.pkts) == 0 {
		return o
	}
	if err := b.port.send(d, b.pkts); err != nil {
		o = oversizeOf(b.pkts, err)
	}
	clear(b.pkts)
	b.pkts = b.pkts[:0]
	return o
}

// oversize is a packet of a QP that is too large for its link: its path MTU is, or the interface
// has a smaller MTU now. Sending it again does not help.
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

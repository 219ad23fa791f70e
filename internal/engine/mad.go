package engine

import (
	"bytes"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// mads is the receiving part of QP 1, the general service interface, where the connection managers
// of devices talk to each other: a queue of datagrams, which one goroutine passes to the handler.
type mads struct {
	mu      sync.Mutex
	wait    sync.Cond
	queue   []*MAD
	handler func(*MAD)
	refused func(dst netip.Addr, mad []byte)
	closed  bool
	psn     roce.PSN // of the next datagram that is sent
}

// add queues a datagram. It reports false if the queue is full.
func (m *mads) add(mad *MAD) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handler == nil || m.closed {
		return true
	}
	if len(m.queue) == madQueue {
		return false
	}
	m.queue = append(m.queue, mad)
	m.wait.Signal()
	return true
}

// serve calls the handler until the device is closed.
func (m *mads) serve() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for len(m.queue) == 0 && !m.closed {
			m.wait.Wait()
		}
		if m.closed {
			return
		}
		mad, handler := m.queue[0], m.handler
		m.queue[0] = nil
		m.queue = m.queue[1:]
		if handler != nil {
			m.mu.Unlock()
			handler(mad)
			m.mu.Lock()
		}
	}
}

func (m *mads) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.wait.Broadcast()
}

func (d *Device) receiveMAD(p *packet) {
	if !p.Opcode.Has(roce.HasDETH) || !d.checkPKey(p) {
		return
	}
	// QP 1 has a Q_Key that all know, with the bit that keeps programs from using it themselves.
	if p.DETH.QKey != roce.GSIQKey {
		saturate(&d.violations.qkeys)
		return
	}
	port := d.gids.of(p.dst)
	if port == nil || len(p.Payload) > roce.MADSize {
		return
	}
	d.counters.add(receivedPackets, 1)
	mad := &MAD{
		GIDIndex: port.index, Src: p.src, SrcQP: p.DETH.SrcQP, TrafficClass: p.tos,
		Data: bytes.Clone(p.Payload),
	}
	if !d.mads.add(mad) {
		d.counters.add(outOfBuffer, 1)
	}
}

// MAD is a received management datagram.
type MAD struct {
	GIDIndex     int        // of the local address it was sent to
	Src          netip.Addr // address of the sender
	SrcQP        uint32
	TrafficClass uint8
	Data         []byte // valid during the call
}

// OnMAD sets the function that is called for each datagram that QP 1 receives. It is
// called from a goroutine of its own, one datagram at a time and without locks, so it may
// call the engine, except Close. Nil sets none: datagrams are then dropped.
func (d *Device) OnMAD(f func(*MAD)) {
	d.mads.mu.Lock()
	defer d.mads.mu.Unlock()
	d.mads.handler = f
}

// OnRefused sets the function that is called when a host has refused a datagram of SendMAD, as it
// has no RoCE device: with the destination and the beginning of the datagram that the host has
// quoted, which is valid during the call. Only the datagram's contents prove that the host has seen
// it. It is called without locks. Not all networks know such hosts.
func (d *Device) OnRefused(f func(dst netip.Addr, mad []byte)) {
	d.mads.mu.Lock()
	defer d.mads.mu.Unlock()
	d.mads.refused = f
}

// refused takes the quoted part of a packet that a host has refused.
func (d *Device) refused(dst netip.AddrPort, quoted []byte) {
	const headers = roce.BTHSize + roce.DETHSize
	if dst.Port() != d.cfg.Port || len(quoted) <= headers || roce.Opcode(quoted[0]) != roce.UDSendOnly {
		return
	}
	d.mads.mu.Lock()
	f := d.mads.refused
	d.mads.mu.Unlock()
	if f != nil {
		f(dst.Addr().Unmap().WithZone(""), quoted[headers:])
	}
}

// SendMAD sends a datagram from QP 1 to QP 1 of the device with address dst, from the address with
// index gidIndex, with a traffic class. The datagram may be for the device itself. Like the
// network, it may lose datagrams without an error. It fails with EINVAL if there is no such GID,
// the address is of the other family, or mad has more than 256 bytes.
func (d *Device) SendMAD(gidIndex int, dst netip.Addr, tos uint8, mad []byte) error {
	if err := d.usable(); err != nil {
		return err
	}
	from := d.gids.at(gidIndex)
	if from == nil || len(mad) > roce.MADSize {
		return syscall.EINVAL
	}
	p, err := d.pathTo(from, dst.Unmap().WithZone(""), verbs.AddressVector{TrafficClass: tos})
	if err != nil {
		return err
	}
	d.mads.mu.Lock()
	psn := d.mads.psn
	d.mads.psn = psn.Add(1)
	d.mads.mu.Unlock()
	pkt := &roce.Packet{
		Opcode: roce.UDSendOnly, PKey: roce.DefaultPKey, DestQP: roce.GSIQP, PSN: psn,
		DETH: roce.DETH{QKey: roce.GSIQKey, SrcQP: roce.GSIQP}, Payload: mad,
	}
	if r, ok := p.port.net.(netif.Refusals); ok && !p.local {
		r.WatchRefusals()
	}
	d.sendDatagram(p, pkt)
	return nil
}

// sendDatagram sends a packet that no QP sends. The caller holds no lock of a QP.
func (d *Device) sendDatagram(p *path, pkt *roce.Packet) {
	d.counters.add(sentPackets, 1)
	to := d.qps.get(pkt.DestQP)
	if p.local && to == nil && pkt.DestQP != roce.GSIQP {
		return
	}
	if p.local { // behind the packets that the device's QPs have sent: the end of a connection behind its data
		own := d.getPacket(len(pkt.Payload))
		own.Packet = *pkt
		copy(own.buf, pkt.Payload)
		own.setAddrs(p)
		d.push([]work{{qp: to, pkt: own}})
		d.drain()
		return
	}
	buf := p.flow.AppendICRC(pkt.Append(make([]byte, 0, pkt.Len())), 0)
	p.port.send(d, []netif.Packet{{Src: p.src, Dst: p.dst, TOS: p.av.TrafficClass, Data: buf}})
}

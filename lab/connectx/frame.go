//go:build linux

package connectx

import (
	"bytes"
	"hash/fnv"
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

const (
	maxFrame   = 10 << 10 // what mlx5e may send with the largest MTU
	minFrame   = 60       // shorter ones are padded on the wire
	etherSize  = 14
	typeIPv4   = 0x0800
	typeIPv6   = 0x86dd
	typeVLAN   = 0x8100
	vlanSize   = 4
	typeARP    = 0x0806
	insertVLAN = 1 << 15 // in the size of the inline header
)

// ring executes the requests of a send queue that a doorbell shows.
func (e *ethernet) ring(q *sendQueue, b []byte, one bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReady {
		return
	}
	q.shown.ring(b, one, &q.ring)
	for end := q.shown.to(); q.head != end; {
		wqe, ok := e.request(q, end-q.head)
		if !ok || !e.execute(q, wqe) {
			q.fail(syndromes[verbs.WCLocQPOpErr])
			return
		}
		blocks := uint16(len(wqe)+63) / 64
		if wqe[11]&wqeCtrlCqUpdate != 0 {
			var c cqe
			be.PutUint16(c[cqeCounter:], q.head)
			be.PutUint32(c[cqeOpQPN:], uint32(wqe[3])<<24|q.num)
			be.PutUint64(c[cqeTime:], e.d.clock())
			if !q.cq.put(&c, cqeRequest, false) {
				q.state = stateError
				return
			}
		}
		q.head += blocks
	}
}

// fail completes the request at the head with an error, and ends the queue's work.
func (q *ethQueue) fail(syndrome byte) {
	q.state = stateError
	var c cqe
	be.PutUint16(c[cqeCounter:], q.head)
	be.PutUint32(c[cqeOpQPN:], q.num)
	c[cqeSyndrome] = syndrome
	q.cq.put(&c, cqeRequestError, true)
}

// request returns a copy of the request at the head, behind which the guest has posted blocks.
func (e *ethernet) request(q *sendQueue, blocks uint16) (wqe []byte, ok bool) {
	var b [maxWQE]byte
	if wqe = b[:q.ring.request(&b, q.head, blocks)]; len(wqe) == 0 {
		return nil, false
	}
	e.d.record(Event{Kind: RecordWQE, Number: q.num, Offset: int(q.head), In: wqe})
	// The control segment names its queue and its place.
	return wqe, q.shown.use(q.head, wqe) && be.Uint32(wqe[4:])>>8 == q.num && be.Uint16(wqe[1:]) == q.head
}

// execute executes a request. It reports false if that is malformed or not supported.
func (e *ethernet) execute(q *sendQueue, wqe []byte) bool {
	switch wqe[3] {
	case opcodeNop:
		return true
	case opcodeSend, opcodeLso:
	default:
		return false
	}
	if len(wqe) < 32 {
		return false
	}
	limit := maxFrame
	if wqe[3] == opcodeLso {
		limit = 1<<logMaxLSO + 256 // with headers
	}
	// The Ethernet segment, struct mlx5_wqe_eth_seg: checksums at 4, a VLAN tag, or the size of a
	// header and the header itself, at 12.
	eth := wqe[16:]
	flags, size := eth[4], int(be.Uint16(eth[12:]))
	frame := make([]byte, 0, 2048)
	vlan, rest := []byte(nil), wqe[32:]
	if size&insertVLAN != 0 {
		vlan, size = []byte{typeVLAN >> 8, typeVLAN & 0xff, eth[14], eth[15]}, 0
	}
	if size > 0 {
		if size > len(eth)-etherSize {
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
			if !e.d.t.mkeys.physical(be.Uint32(rest[4:]), q.pd, false) || e.d.mem.ReadAt(frame[at:], be.Uint64(rest[8:])) != nil {
				return false
			}
		}
		rest = rest[16:]
	}
	if wqe[3] == opcodeLso {
		return e.segment(frame, size, int(be.Uint16(eth[6:])&0x3fff))
	}
	if len(frame) < etherSize {
		return false
	}
	if vlan != nil {
		frame = append(frame[:12:12], append(vlan, frame[12:]...)...)
	}
	fillChecksums(frame, flags&ethWqeL3Csum != 0, flags&ethWqeL4Csum != 0)
	e.send(frame)
	return true
}

// segment sends data behind a TCP header in frames with mss bytes of it each. It reports false if the
// header is not one of Ethernet, IP and TCP and nothing else.
func (e *ethernet) segment(frame []byte, header, mss int) bool {
	if header < etherSize || header > len(frame) || mss == 0 || header+min(mss, len(frame)) > maxFrame {
		return false
	}
	template, data := frame[:header:header], frame[header:]
	at, _ := network(template)
	if header-at < 40 { // IPv4 and TCP without options
		return false
	}
	setIPSize(template[at:]) // which the driver leaves to the adapter
	h := parse(template)
	if h.proto != 6 || h.checksumAt() == 0 || h.l4+int(template[h.l4+12]>>4)*4 != header {
		return false
	}
	const fin, psh, cwr = 0x01, 0x08, 0x80
	for i := 0; len(data) > 0; i++ {
		n := min(mss, len(data))
		f := append(template, data[:n]...) // a copy
		setIPSize(f[at:])
		if h.l3Type == 2 {
			be.PutUint16(f[at+4:], be.Uint16(f[at+4:])+uint16(i))
		}
		tcp := f[h.l4:]
		be.PutUint32(tcp[4:], be.Uint32(tcp[4:])+uint32(i*mss))
		if n < len(data) {
			tcp[13] &^= fin | psh
		}
		if i > 0 {
			tcp[13] &^= cwr
		}
		fillChecksums(f, true, true)
		e.send(f)
		data = data[n:]
	}
	return true
}

// setIPSize writes the size of an IP packet of at least 40 bytes to its header.
func setIPSize(ip []byte) {
	if ip[0]>>4 == 4 {
		be.PutUint16(ip[2:], uint16(len(ip)))
	} else {
		be.PutUint16(ip[4:], uint16(len(ip)-40))
	}
}

func class(frame []byte) int {
	switch {
	case bytes.Equal(frame[:6], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}):
		return broadcast
	case frame[0]&1 != 0:
		return multicast
	}
	return unicast
}

func (e *ethernet) send(frame []byte) {
	frame = append(frame, make([]byte, max(minFrame-len(frame), 0))...)
	e.tx[class(frame)].add(frame)
	if e.wire != nil && !e.d.port.isDown() {
		e.wire.send(frame)
	}
}

// receive takes frames from the wire.
func (e *ethernet) receive(list [][]byte) {
	for _, frame := range list {
		if e.d.port.isDown() {
			continue
		}
		if q := e.queueOf(frame); q != nil && e.deliver(q, frame) {
			e.rx[class(frame)].add(frame)
		}
	}
}

// queueOf returns the receive queue for a frame, or nil.
func (e *ethernet) queueOf(frame []byte) *receiveQueue {
	t, ok := e.rqts.get(e.rss.Load())
	if !ok {
		return nil
	}
	t.mu.Lock()
	num := t.rqns[flowHash(frame)%uint32(len(t.rqns))]
	t.mu.Unlock()
	q, _ := e.rqs.get(num)
	return q
}

// deliver writes a frame to the receive at the head of a queue. It reports false if there is none.
func (e *ethernet) deliver(q *receiveQueue, frame []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReady {
		return false
	}
	if q.head == uint16(q.ring.posted(recvRecord)) {
		e.noBuffer.Add(1)
		return false
	}
	var c cqe
	l := inspect(frame)
	if l.vlan && !q.keepVLAN {
		copy(c[30:32], frame[etherSize:]) // vlan_info
		c[29] |= 1
		frame = append(frame[:12:12], frame[12+vlanSize:]...)
	}
	rest := frame
	for s := q.ring.at(uint32(q.head)); len(s) >= 16 && len(rest) > 0; s = s[16:] {
		n, key := int(be.Uint32(s)&0x7fffffff), be.Uint32(s[4:])
		if n == 0 || key == terminateKey {
			break
		}
		n = min(n, len(rest))
		if !e.d.t.mkeys.physical(key, q.pd, true) || e.d.mem.WriteAt(rest[:n], be.Uint64(s[8:])) != nil {
			q.fail(syndromes[verbs.WCLocProtErr])
			return false
		}
		rest = rest[n:]
	}
	if len(rest) > 0 { // longer than the receive
		q.fail(syndromes[verbs.WCLocLenErr])
		return false
	}
	be.PutUint32(c[cqeByteCount:], uint32(len(frame)))
	be.PutUint16(c[cqeCounter:], q.head)
	be.PutUint32(c[cqeOpQPN:], q.num)
	be.PutUint64(c[cqeTime:], e.d.clock())
	be.PutUint16(c[20:], roce.OnesSum(frame[etherSize:], 0)) // of all behind the Ethernet header
	c[28] = 1 | l.l3OK<<1 | l.l4OK<<2                        // headers that are in order
	c[29] |= l.l3Type<<2 | l.l4Type<<4
	q.head++
	if !q.cq.put(&c, cqeSend, false) {
		q.state = stateError
		return false
	}
	return true
}

// terminateKey ends the list of a receive request, MLX5_TERMINATE_SCATTER_LIST_LKEY.
const terminateKey = 0x100

// headers are what a frame's headers are and where.
type headers struct {
	l3, l4, end    int // offsets: of the IP header, of what follows it, and of its end
	proto          byte
	vlan           bool
	l3Type, l4Type byte // as in CQEs
	l3OK, l4OK     byte
	pseudo         uint32
}

// network returns where the header behind that of Ethernet is, and its type. A frame has at least etherSize bytes.
func network(f []byte) (at int, typ uint16) {
	at, typ = etherSize, be.Uint16(f[12:])
	if typ == typeVLAN && len(f) >= etherSize+vlanSize {
		at, typ = etherSize+vlanSize, be.Uint16(f[16:])
	}
	return at, typ
}

// parse finds the headers. l3 is 0 if the frame has no IP header, l4 if it has no TCP or UDP header
// that is whole.
func parse(f []byte) (h headers) {
	at, typ := network(f)
	h.vlan = at > etherSize
	ip := f[at:]
	switch {
	case typ == typeIPv4 && len(ip) >= 20 && ip[0]>>4 == 4:
		size, total := int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
		if size < 20 || total < size || total > len(ip) {
			return h
		}
		h.l3, h.l4, h.end, h.l3Type = at, at+size, at+total, 2
		if be.Uint16(ip[6:])&0x3fff == 0 { // whole
			h.proto = ip[9]
		}
		h.pseudo = uint32(roce.OnesSum(ip[12:20], 0))
	case typ == typeIPv6 && len(ip) >= 40 && ip[0]>>4 == 6:
		total := 40 + int(be.Uint16(ip[4:]))
		if total > len(ip) {
			return h
		}
		h.l3, h.l4, h.end, h.l3Type, h.proto = at, at+40, at+total, 1, ip[6]
		h.pseudo = uint32(roce.OnesSum(ip[8:40], 0))
	default:
		return h
	}
	h.pseudo += uint32(h.proto) + uint32(h.end-h.l4)
	return h
}

// checksumAt returns the offset of the checksum in a TCP or UDP header, or 0 if there is no such
// header.
func (h *headers) checksumAt() int {
	least, at := 0, 0
	switch h.proto {
	case 6:
		least, at = 20, 16
	case 17:
		least, at = 8, 6
	}
	if at == 0 || h.end-h.l4 < least {
		return 0
	}
	return h.l4 + at
}

// inspect is parse, with the checks of what has been received.
func inspect(f []byte) headers {
	h := parse(f)
	if h.l3Type == 1 || h.l3Type == 2 && roce.OnesSum(f[h.l3:h.l4], 0) == 0xffff {
		h.l3OK = 1
	}
	if at := h.checksumAt(); at > 0 {
		h.l4Type = 2
		if h.proto == 6 {
			h.l4Type = 1
			if f[h.l4+13]&0x10 != 0 { // ACK, without or with data
				h.l4Type = 3
				if h.end > h.l4+int(f[h.l4+12]>>4)*4 {
					h.l4Type = 4
				}
			}
		}
		none := h.proto == 17 && h.l3Type == 2 && be.Uint16(f[at:]) == 0
		if none || roce.OnesSum(f[h.l4:h.end], h.pseudo) == 0xffff {
			h.l4OK = 1
		}
	}
	return h
}

// fillChecksums writes the checksums that the driver leaves to the adapter.
func fillChecksums(f []byte, l3, l4 bool) {
	if !l3 && !l4 {
		return
	}
	h := parse(f)
	if l3 && h.l3Type == 2 {
		be.PutUint16(f[h.l3+10:], 0)
		be.PutUint16(f[h.l3+10:], ^roce.OnesSum(f[h.l3:h.l4], 0))
	}
	if at := h.checksumAt(); l4 && at > 0 {
		be.PutUint16(f[at:], 0)
		s := ^roce.OnesSum(f[h.l4:h.end], h.pseudo)
		if s == 0 && h.proto == 17 { // zero says that there is none
			s = 0xffff
		}
		be.PutUint16(f[at:], s)
	}
}

// flowHash is the same for the frames of a flow.
func flowHash(f []byte) uint32 {
	h := parse(f)
	if h.l3Type == 0 {
		return 0
	}
	sum := fnv.New32a()
	if h.l3Type == 2 {
		sum.Write(f[h.l3+12 : h.l3+20])
	} else {
		sum.Write(f[h.l3+8 : h.l3+40])
	}
	if h.checksumAt() > 0 {
		sum.Write(f[h.l4 : h.l4+4])
	}
	return sum.Sum32()
}

// packetFrame returns the frame of a RoCE packet, whose ICRC is for "don't fragment" and the
// identification 0.
func packetFrame(k netif.Packet, src, dst mac) []byte {
	typ := uint16(typeIPv6)
	if k.Dst.Addr().Unmap().Is4() {
		typ = typeIPv4
	}
	f := append(append(make([]byte, 0, etherSize+48+len(k.Data)), dst[:]...), src[:]...)
	f = roce.AppendIP(be.AppendUint16(f, typ), k.Src, k.Dst, k.TOS, k.Data)
	fillChecksums(f, false, true)
	return append(f, make([]byte, max(minFrame-len(f), 0))...)
}

// groupMAC returns the MAC address of a multicast group (RFC 1112, 6.4, and RFC 2464, 7).
func groupMAC(group netip.Addr) mac {
	a := group.As16()
	if group.Is4() {
		return mac{0x01, 0x00, 0x5e, a[13] & 0x7f, a[14], a[15]}
	}
	return mac{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

// framePacket returns the RoCE packet in a frame, of which it is a part.
func framePacket(f []byte) (k netif.Packet, ok bool) {
	h := parse(f)
	if h.proto != protoUDP || h.checksumAt() == 0 {
		return k, false
	}
	ip, datagram := f[h.l3:h.l4], f[h.l4:h.end]
	size := int(be.Uint16(datagram[4:]))
	if be.Uint16(datagram[2:]) != roce.Port || size < 8 || size > len(datagram) {
		return k, false
	}
	src, dst := h.addrs(f)
	k.Src, k.Dst = netip.AddrPortFrom(src, be.Uint16(datagram)), netip.AddrPortFrom(dst, roce.Port)
	k.Data, k.IDKnown = datagram[8:size], true
	if h.l3Type == 2 {
		k.TOS, k.ID = ip[1], be.Uint16(ip[4:])
	} else {
		k.TOS = ip[0]<<4 | ip[1]>>4
	}
	return k, true
}

// addrs returns the addresses of an IP packet.
func (h *headers) addrs(f []byte) (src, dst netip.Addr) {
	if h.l3Type == 2 {
		return netip.AddrFrom4([4]byte(f[h.l3+12:])), netip.AddrFrom4([4]byte(f[h.l3+16:]))
	}
	return netip.AddrFrom16([16]byte(f[h.l3+8:])), netip.AddrFrom16([16]byte(f[h.l3+24:]))
}

// source returns the address of the host that sends a frame, if that is to be seen, and of a request
// of ARP what it asks for. A host that probes an address, or announces its own, asks for nothing.
func source(f []byte) (from, target netip.Addr, request bool) {
	if arp := f[etherSize:]; be.Uint16(f[12:]) == typeARP && len(arp) >= arpSize {
		from, target = netip.AddrFrom4([4]byte(arp[14:])), netip.AddrFrom4([4]byte(arp[24:]))
		request = be.Uint16(arp[6:]) == arpRequest && from != target
	} else if h := parse(f); h.l3Type != 0 {
		from, _ = h.addrs(f)
	}
	if from.IsUnspecified() || from.IsMulticast() {
		return netip.Addr{}, target, false
	}
	return from, target, request
}

const (
	protoUDP    = 17
	arpSize     = 28
	arpRequest  = 1
	arpResponse = 2
)

// arpReply returns the answer to a request of ARP.
func arpReply(request []byte, addr mac) []byte {
	f := append(make([]byte, 0, minFrame), request[6:12]...)
	f = append(append(f, addr[:]...), request[12:20]...) // from the type to the lengths of addresses
	f = append(be.AppendUint16(f, arpResponse), addr[:]...)
	f = append(f, request[etherSize+24:etherSize+28]...)
	f = append(f, request[etherSize+8:etherSize+18]...)
	return append(f, make([]byte, minFrame-len(f))...)
}

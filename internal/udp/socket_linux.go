//go:build !nordma

package udp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

const (
	sendMessages    = 64  // of one sendmmsg
	sendVectors     = 512 // of one sendmmsg
	receiveMessages = 16  // of one recvmmsg
	maxSegments     = 64  // of one message: UDP_MAX_SEGMENTS, until Linux 6.8
	maxSegmented    = 65000
	plainBuffer     = 8192 // for a message without receive offload: RoCE packets have at most 4 KiB of payload
	groBuffer       = 65536
	minSegment      = 16 // the smallest packet: BTH and ICRC
	nameSize        = unix.SizeofSockaddrInet6
	sendControl     = 64  // for TOS or traffic class, UDP_SEGMENT
	receiveControl  = 128 // for TOS or traffic class, UDP_GRO, SO_RXQ_OVFL
)

// message is the kernel's struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
}

// socket is a UDP socket. The kernel only gets pointers to the heap: to its fields and to packets,
// which escape.
type socket struct {
	file     *os.File
	raw      syscall.RawConn
	addr     netip.AddrPort // of the port, without zone
	dst      netip.AddrPort // of received packets
	scope    uint32         // zone of link-local addresses
	mtu      int
	counters *counters

	sending sync.Mutex // guards the following
	out     sender
	backlog backlog

	in receiver // of the goroutine that reads

	refusals refusals

	closed  atomic.Bool   // read ends
	idle    atomic.Bool   // that goroutine waits for packets
	handled atomic.Uint64 // bytes of the packets that have been delivered, see Port.Arrived
}

// backlog has the packets for which the socket had no room, in order. One goroutine sends them as
// the socket gets room; Send adds to them until it has. It is guarded by socket.sending.
type backlog struct {
	packets []netif.Packet
	bytes   int
	closed  bool // no goroutine starts any more
	sender  sync.WaitGroup
}

// maxBacklog limits the bytes of a backlog. Packets beyond it are lost, as in the queue of a
// network interface: RC repeats them, and has at most 128 packets for a QP in flight.
const maxBacklog = 4 << 20

// packetCost is what a packet in the backlog counts beside its bytes.
const packetCost = 128

// sender has the messages of one sendmmsg. It is guarded by socket.sending.
type sender struct {
	message  [sendMessages]message
	name     [sendMessages][nameSize]byte
	control  [sendMessages][sendControl]byte
	packets  [sendMessages]int // of each message
	vector   [sendVectors]unix.Iovec
	icrc     [sendVectors][roce.ICRCSize]byte // corrected ones
	gso      bool
	vectors  int
	next, n  int // messages that have not been sent
	written  int // by the last call
	errno    unix.Errno
	transmit func(fd uintptr)
}

// receiver has the messages of one recvmmsg. It belongs to the goroutine that reads.
type receiver struct {
	message [receiveMessages]message
	name    [receiveMessages][nameSize]byte
	control [receiveMessages][receiveControl]byte
	vector  [receiveMessages]unix.Iovec
	buffer  [receiveMessages][]byte
	packets []netif.Packet
	n       int    // messages received by the last call
	bytes   int    // of these messages
	lost    uint32 // the last SO_RXQ_OVFL
}

// listen opens a socket that is bound to the port's address, or to a group's.
func listen(c config, counters *counters) (*socket, error) {
	ip := c.addr.Addr()
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{
		addr: netip.AddrPortFrom(ip.WithZone(""), c.addr.Port()), scope: uint32(c.ifi.Index), mtu: c.mtu, counters: counters,
	}
	s.dst = s.addr
	if c.group.IsValid() {
		s.dst = netip.AddrPortFrom(c.group, c.addr.Port())
	}
	gro, err := s.configure(fd, c)
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, s.sockaddr(s.dst)))
	}
	if err == nil && c.group.IsValid() {
		err = join(fd, c)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s.file = os.NewFile(uintptr(fd), "udp")
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, err
	}
	s.out.prepare()
	s.out.transmit = s.transmit
	s.in.prepare(gro)
	return s, nil
}

func (s *socket) sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if needsScope(a.Addr()) {
		sa.ZoneId = s.scope
	}
	return sa
}

// needsScope reports whether an address means nothing without an interface.
func needsScope(ip netip.Addr) bool {
	return ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()
}

// configure sets the socket's options. It reports whether receive offload is on.
func (s *socket) configure(fd int, c config) (gro bool, err error) {
	set := func(level, option, value int) {
		if e := unix.SetsockoptInt(fd, level, option, value); e != nil && err == nil {
			err = os.NewSyscallError("setsockopt", e)
		}
	}
	buffer := func(force, option, size int) {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
			set(unix.SOL_SOCKET, option, size)
		}
	}
	buffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, c.readBuffer)
	buffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, c.writeBuffer)
	set(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	// With PMTUDISC_PROBE, packets have DF, the identification is 0, and packets that are
	// larger than the MTU are refused. ICMP messages do not change the path MTU.
	if c.addr.Addr().Is4() {
		set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		set(unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0)
		if e := unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, c.addr.Addr().As4()); e != nil && err == nil {
			err = os.NewSyscallError("setsockopt", e)
		}
	} else {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		set(unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0)
		set(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, c.ifi.Index)
		set(unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1) // rxe: prepare_udp_hdr
	}
	if c.group.IsValid() {
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	// The buffers of merged datagrams have 1 MiB, too much for each of many groups.
	if c.offload && !c.group.IsValid() {
		gro = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
		_, e := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
		s.out.gso = e == nil
	}
	return gro, err
}

func join(fd int, c config) error {
	if c.group.Is4() {
		mreq := &unix.IPMreqn{Multiaddr: c.group.As4(), Address: c.addr.Addr().As4(), Ifindex: int32(c.ifi.Index)}
		return os.NewSyscallError("setsockopt", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, mreq))
	}
	mreq := &unix.IPv6Mreq{Multiaddr: c.group.As16(), Interface: uint32(c.ifi.Index)}
	return os.NewSyscallError("setsockopt", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, mreq))
}

// close closes the socket. It waits for a call of deliver in read. Packets that still wait for the
// socket are lost.
func (s *socket) close() error {
	s.closed.Store(true)
	s.sending.Lock()
	s.backlog.closed = true
	s.sending.Unlock()
	s.refusals.close()
	err := s.file.Close()
	s.backlog.sender.Wait()
	s.counters.dropSent(len(s.backlog.packets))
	return err
}

// prepare sets the pointers that do not change.
func (o *sender) prepare() {
	for i := range o.message {
		o.message[i].Name = &o.name[i][0]
		o.message[i].Control = &o.control[i][0]
	}
}

// prepare allocates buffers and sets the pointers to them.
func (in *receiver) prepare(gro bool) {
	size := plainBuffer
	if gro {
		size = groBuffer
	}
	all := make([]byte, receiveMessages*size)
	for i := range in.message {
		in.buffer[i] = all[i*size : (i+1)*size]
		in.vector[i].Base = &in.buffer[i][0]
		in.vector[i].SetLen(size)
		m := &in.message[i]
		m.Name, m.Control, m.Iov = &in.name[i][0], &in.control[i][0], &in.vector[i]
		m.SetIovlen(1)
	}
}

// send sends packets in as few messages as possible. Packets of one size to one destination become
// the segments of one message. It returns the first error. It never waits for room in the socket:
// callers hold locks that the device's other goroutines need.
func (s *socket) send(pkts []netif.Packet) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if len(s.backlog.packets) > 0 {
		return s.postpone(pkts, 0)
	}
	rest, err := s.sendNow(pkts)
	if len(rest) > 0 {
		err = errors.Join(err, s.postpone(rest, len(pkts)-len(rest)))
	}
	return err
}

// sendNow sends packets until the socket has no room. It returns the rest and the first error. The
// caller holds sending.
func (s *socket) sendNow(pkts []netif.Packet) (rest []netif.Packet, first error) {
	o, count := &s.out, len(pkts)
	plain, vectors := false, 0 // no segmentation; vectors used
	again := 0                 // how often the first packet has been tried again
	defer func() { clear(o.vector[:vectors]) }()
	for len(pkts) > 0 {
		if err := s.check(&pkts[0]); err != nil {
			s.counters.dropSent(1)
			first = firstError(first, err, count-len(pkts))
			pkts = pkts[1:]
			continue
		}
		o.encode(s, pkts, plain)
		plain, vectors = false, max(vectors, o.vectors)
		for o.next < o.n {
			if s.raw.Control(o.transmit) != nil {
				s.counters.dropSent(len(pkts))
				return nil, net.ErrClosed
			}
			pkts = pkts[s.count():]
			if o.errno == 0 {
				again = 0
				continue
			}
			if o.errno == unix.EAGAIN {
				return pkts, first
			}
			if o.packets[o.next] > 1 { // The interface may have no checksum offload.
				o.gso = o.gso && o.errno != unix.EIO
				plain = true
				break
			}
			if again < maxPending && s.refusals.watching.Load() {
				again++ // the error may be an earlier packet's, see refusals
				continue
			}
			if o.errno == unix.EMSGSIZE && !s.tooLarge(&pkts[0]) {
				o.errno = unix.ENOBUFS
			}
			again = 0
			s.counters.dropSent(1)
			first = firstError(first, fmt.Errorf("to %v: %w", pkts[0].Dst, os.NewSyscallError("sendmmsg", o.errno)), count-len(pkts))
			o.next++
			pkts = pkts[1:]
		}
	}
	return nil, first
}

// postpone adds copies of packets to the backlog, and starts its goroutine. The first is packet at of
// Send. It returns the first error of those that the link does not carry, which nobody would hear of
// later. The caller holds sending.
func (s *socket) postpone(pkts []netif.Packet, at int) (first error) {
	b := &s.backlog
	if b.closed {
		s.counters.dropSent(len(pkts))
		return net.ErrClosed
	}
	for i, p := range pkts {
		if err := s.check(&p); err != nil {
			s.counters.dropSent(1)
			first = firstError(first, err, at+i)
			continue
		}
		if len(b.packets) == 0 {
			b.sender.Go(s.sendBacklog)
		}
		if b.bytes+len(p.Data)+packetCost > maxBacklog {
			s.counters.dropSent(len(pkts) - i)
			return cmp.Or(first, fmt.Errorf("to %v: the link is slower than the device, and %d bytes wait for it: %w", p.Dst, b.bytes, unix.ENOBUFS))
		}
		b.bytes += len(p.Data) + packetCost
		p.Data = bytes.Clone(p.Data)
		b.packets = append(b.packets, p)
	}
	return first
}

// sendBacklog sends the backlog as the socket gets room, until there is none or the socket is
// closed.
func (s *socket) sendBacklog() {
	s.raw.Write(func(uintptr) bool {
		s.sending.Lock()
		defer s.sending.Unlock()
		b := &s.backlog
		for len(b.packets) > 0 {
			few := b.packets[:min(len(b.packets), sendMessages)]
			rest, _ := s.sendNow(few)
			for i := range few[:len(few)-len(rest)] {
				b.bytes -= len(few[i].Data) + packetCost
				few[i] = netif.Packet{}
			}
			b.packets = b.packets[len(few)-len(rest):]
			if len(rest) > 0 {
				return false // waits for room
			}
		}
		b.packets = nil
		return true
	})
}

// count counts the messages that the last call has sent, and returns the number of packets.
func (s *socket) count() int {
	o := &s.out
	total, segments := 0, 0
	for _, n := range o.packets[o.next : o.next+o.written] {
		total += n
		if n > 1 {
			segments += n
		}
	}
	o.next += o.written
	s.counters.sent.Add(uint64(total))
	s.counters.sentSegments.Add(uint64(segments))
	return total
}

// check returns why a packet cannot be sent.
func (s *socket) check(p *netif.Packet) error {
	ip := p.Dst.Addr()
	header := ipHeader(ip)
	switch {
	case ip.Is4() != s.addr.Addr().Is4() || !ip.IsValid():
		return fmt.Errorf("to %v: %w", p.Dst, unix.EAFNOSUPPORT)
	case header+8+len(p.Data) > s.mtu:
		return fmt.Errorf("to %v: a packet of %d bytes is larger than the MTU %d: %w", p.Dst, header+8+len(p.Data), s.mtu, unix.EMSGSIZE)
	}
	return nil
}

func ipHeader(ip netip.Addr) int {
	if ip.Is6() {
		return 40
	}
	return 20
}

// encode makes messages of the first packets.
func (o *sender) encode(s *socket, pkts []netif.Packet, plain bool) {
	o.next, o.n, o.vectors = 0, 0, 0
	for len(pkts) > 0 && o.n < sendMessages && o.vectors+2*maxSegments <= sendVectors && (o.n == 0 || s.check(&pkts[0]) == nil) {
		run := 1
		if o.gso && !plain {
			run = segments(pkts)
		}
		p, m := &pkts[0], &o.message[o.n]
		m.Iov = &o.vector[o.vectors]
		before := o.vectors
		for i := range pkts[:run] {
			o.add(&pkts[i], uint16(i))
		}
		m.SetIovlen(o.vectors - before)
		m.Namelen = putName(&o.name[o.n], p.Dst, s.scope)
		control := o.control[o.n][:0]
		if p.TOS != 0 && p.Dst.Addr().Is4() {
			control = putControl(control, unix.IPPROTO_IP, unix.IP_TOS, uint32(p.TOS))
		} else if p.TOS != 0 {
			control = putControl(control, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, uint32(p.TOS))
		}
		if run > 1 {
			control = putControl(control, unix.SOL_UDP, unix.UDP_SEGMENT, uint16(len(p.Data)))
		}
		m.SetControllen(len(control))
		o.packets[o.n] = run
		o.n++
		pkts = pkts[run:]
	}
}

// segments returns how many of the first packets can be the segments of one message: all have
// one size, only the last one may be smaller.
func segments(pkts []netif.Packet) int {
	first := &pkts[0]
	size := len(first.Data)
	if size < minSegment {
		return 1
	}
	total, n := size, 1
	for n < len(pkts) && n < maxSegments {
		p := &pkts[n]
		if len(p.Data) < minSegment || len(p.Data) > size || len(p.Data)%4 != 0 || total+len(p.Data) > maxSegmented || p.Dst != first.Dst || p.TOS != first.TOS {
			break
		}
		total += len(p.Data)
		n++
		if len(p.Data) < size {
			break
		}
	}
	return n
}

// add adds a packet, which is segment id of a message, to the vectors. An IPv4 packet has id as its
// identification.
func (o *sender) add(p *netif.Packet, id uint16) {
	data := p.Data
	if len(data) == 0 {
		return
	}
	end := len(data)
	if id != 0 && p.Dst.Addr().Is4() {
		end -= roce.ICRCSize
		icrc := &o.icrc[o.vectors]
		binary.LittleEndian.PutUint32(icrc[:], roce.Renumber(data, id))
		o.vector[o.vectors+1] = unix.Iovec{Base: &icrc[0]}
		o.vector[o.vectors+1].SetLen(roce.ICRCSize)
	}
	o.vector[o.vectors] = unix.Iovec{Base: &data[0]}
	o.vector[o.vectors].SetLen(end)
	o.vectors++
	if end < len(data) {
		o.vectors++
	}
}

func (s *socket) transmit(fd uintptr) {
	o := &s.out
	for {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&o.message[o.next])), uintptr(o.n-o.next), unix.MSG_DONTWAIT, 0, 0)
		s.counters.sentCalls.Add(1)
		o.written, o.errno = int(n), errno
		switch errno {
		case 0:
			return
		case unix.EINTR:
			continue
		}
		o.written = 0
		return
	}
}

// read calls deliver for the packets that arrive, and refused for those that hosts have refused,
// until the socket is closed.
func (s *socket) read(deliver func([]netif.Packet), refused func(netip.AddrPort, []byte)) {
	step := func(fd uintptr) bool {
		s.idle.Store(false)
		for {
			more := s.receive(fd)
			if pkts := s.decode(); len(pkts) > 0 {
				deliver(pkts)
			}
			s.handled.Add(uint64(s.in.bytes))
			if !more || s.closed.Load() { // packets may come as fast as they are processed
				break
			}
		}
		if s.refusals.watching.Load() {
			s.readRefusals(fd, refused)
		}
		s.idle.Store(true)
		return false // waits for the next packet
	}
	// The netpoller refuses to wait after an event that is nothing but an error, such as a refused
	// packet while the socket has no room, until the next event.
	for s.raw.Read(step); !s.closed.Load(); s.raw.Read(step) {
		time.Sleep(time.Millisecond)
	}
}

// Arrived implements netif.Backlog. It leaves out packets to multicast groups. Positions count bytes.
// The kernel counts more for a packet than its size, so the position may be too high.
func (p *Port) Arrived() uint64 {
	s := p.socket
	const reading = receiveMessages * groBuffer // at most, by the goroutine that reads
	return s.handled.Load() + reading + s.queued()
}

func (s *socket) queued() uint64 {
	var mem [9]uint32 // by SK_MEMINFO_RMEM_ALLOC, ...
	s.raw.Control(func(fd uintptr) {
		size := uint32(unsafe.Sizeof(mem))
		unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&mem)), uintptr(unsafe.Pointer(&size)), 0)
	})
	return uint64(mem[0])
}

// Handled implements netif.Backlog.
func (p *Port) Handled(position uint64) bool {
	s := p.socket
	return int64(s.handled.Load()-position) >= 0 || s.queued() == 0 && s.idle.Load()
}

// receive calls recvmmsg. It reports whether there may be more packets: with fewer than it asks
// for, the kernel has found the socket empty.
func (s *socket) receive(fd uintptr) (more bool) {
	in := &s.in
	for i := range in.message {
		m := &in.message[i]
		m.Namelen, m.Flags = nameSize, 0
		m.SetControllen(receiveControl)
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&in.message[0])), receiveMessages, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		in.n = 0
		return errno != unix.EAGAIN
	}
	in.n = int(n)
	return in.n == receiveMessages
}

// decode returns the packets that the last call has received.
func (s *socket) decode() []netif.Packet {
	in := &s.in
	in.packets, in.bytes = in.packets[:0], 0
	for i := range in.message[:in.n] {
		m := &in.message[i]
		in.bytes += int(m.n)
		tos, segment := s.parse(in.control[i][:m.Controllen])
		if m.Flags&unix.MSG_TRUNC != 0 {
			s.counters.truncated.Add(1)
			continue
		}
		p := netif.Packet{Src: addrPort(&in.name[i]), Dst: s.dst, TOS: tos}
		data := in.buffer[i][:m.n]
		if segment > 0 && segment < len(data) {
			s.counters.receivedSegments.Add(uint64((len(data) + segment - 1) / segment))
		} else {
			segment = len(data)
		}
		for len(data) > 0 {
			n := min(segment, len(data))
			p.Data, data = data[:n:n], data[n:]
			in.packets = append(in.packets, p)
		}
	}
	s.counters.received.Add(uint64(len(in.packets)))
	if in.n > 0 {
		s.counters.receivedCalls.Add(1)
	}
	return in.packets
}

// parse returns what the control messages of a received message say, and counts lost ones.
func (s *socket) parse(control []byte) (tos uint8, segment int) {
	for len(control) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		control = rest
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			tos = data[0]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			tos = uint8(binary.NativeEndian.Uint32(data))
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			segment = int(binary.NativeEndian.Uint32(data))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			lost := binary.NativeEndian.Uint32(data)
			s.counters.dropReceived(int(lost - s.in.lost))
			s.in.lost = lost
		}
	}
	return tos, segment
}

func putControl[T uint16 | uint32](b []byte, level, kind int32, value T) []byte {
	begin, size := len(b), int(unsafe.Sizeof(value))
	b = b[:begin+unix.CmsgSpace(size)]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[begin]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	*(*T)(unsafe.Pointer(&b[begin+unix.CmsgLen(0)])) = value
	return b
}

// putName encodes a socket address and returns its size.
func putName(name *[nameSize]byte, a netip.AddrPort, scope uint32) uint32 {
	binary.BigEndian.PutUint16(name[2:], a.Port())
	if ip := a.Addr(); ip.Is4() {
		binary.NativeEndian.PutUint16(name[:], unix.AF_INET)
		ip4 := ip.As4()
		copy(name[4:], ip4[:])
		return unix.SizeofSockaddrInet4
	}
	ip := a.Addr().As16()
	binary.NativeEndian.PutUint16(name[:], unix.AF_INET6)
	binary.NativeEndian.PutUint32(name[4:], 0)
	copy(name[8:], ip[:])
	if !needsScope(a.Addr()) {
		scope = 0
	}
	binary.NativeEndian.PutUint32(name[24:], scope)
	return unix.SizeofSockaddrInet6
}

func addrPort(name *[nameSize]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(name[2:])
	if binary.NativeEndian.Uint16(name[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])), port)
}

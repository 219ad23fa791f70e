//go:build linux

// Package wire is the network of emulated adapters: an Ethernet between them, and what the headers
// of its frames say.
package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/udp"
)

// Wire is an Ethernet that connects adapters of this process. Frames go to all others. RoCE packets
// between adapters stay as the engine has them, and become frames only for what else is on the
// wire: a guest may have other RoCE devices, such as rxe, behind the network link of an adapter.
// With [Wire.UseUDP], packets to other machines leave by UDP.
//
//	engine ──► wirePort ─┬─► wirePort of another adapter
//	                     ├─► frame ──► frames of all others
//	                     └─► UDP socket, if its address has one and the peer is not on the wire
//	mlx5e  ──► frames ───┬─► wirePort, if it is a RoCE packet to its address
//	                     └─► frames of all others
type Wire struct {
	mu     sync.Mutex
	ports  map[netip.AddrPort]*wirePort
	frames map[*End]struct{}
	macs   map[netip.Addr]mac // of other hosts, by the last frame from their address
	udp    netip.Addr         // of UseUDP
}

// New makes a wire.
func New() *Wire {
	return &Wire{ports: map[netip.AddrPort]*wirePort{}, frames: map[*End]struct{}{}, macs: map[netip.Addr]mac{}}
}

// UseUDP gives an adapter with an IPv4 address, which this machine must have as well, a UDP socket:
// packets from it to addresses that are not on the wire leave there. The wire answers requests of
// ARP for them. Call it before the adapter is made.
func (w *Wire) UseUDP(addr netip.Addr) { w.udp = addr }

const (
	wireMTU   = 4500    // what a RoCE packet of 4096 bytes fits in
	wireQueue = 1 << 14 // what waits for a receiver; the rest is dropped
	wireHosts = 1 << 10 // whose MAC addresses are known
)

// gatewayMAC is that of all hosts beyond the UDP socket.
var gatewayMAC = mac{0x02, 0x15, 0xb3, 0x09, 0xff, 0xff}

// queue is what waits for a receiver, who takes all of it at once.
type queue[T any] struct {
	mu     sync.Mutex
	change sync.Cond
	list   []T
	closed bool
	done   chan struct{} // closed when the receiver has ended; nil without one

	dropped func() // called, with mu held, for what finds no room; or nil
}

func newQueue[T any]() *queue[T] {
	q := &queue[T]{}
	q.change.L = &q.mu
	return q
}

func (q *queue[T]) put(v T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
	case len(q.list) < wireQueue:
		q.list = append(q.list, v)
		q.change.Signal()
	case q.dropped != nil:
		q.dropped()
	}
}

func (q *queue[T]) start(receive func([]T)) {
	q.done = make(chan struct{})
	go func() {
		defer close(q.done)
		var spare []T
		for {
			q.mu.Lock()
			for len(q.list) == 0 && !q.closed {
				q.change.Wait()
			}
			list := q.list
			q.list = spare[:0]
			closed := q.closed
			q.mu.Unlock()
			if closed {
				return
			}
			receive(list)
			clear(list)
			spare = list
		}
	}()
}

func (q *queue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.change.Signal()
	q.mu.Unlock()
	if q.done != nil {
		<-q.done
	}
}

// link is the wire as the engine of an adapter has it: one for each adapter.
type link struct {
	w   *Wire
	mac mac // of frames; zero if there are none
}

// Network returns the wire as the network of an adapter, whose packets for hosts that are no
// adapters have its MAC address. Without one, as on InfiniBand, there are only adapters.
func (w *Wire) Network(addr net.HardwareAddr) netif.Network {
	l := &link{w: w}
	copy(l.mac[:], addr)
	return l
}

// wirePort is a port of the engine.
type wirePort struct {
	*link
	addr   netip.AddrPort
	udp    netif.Port              // nil without
	groups map[netip.Addr]struct{} // guarded by w.mu
	*queue[netif.Packet]
}

// Open makes the port with an address.
func (l *link) Open(addr netip.AddrPort) (netif.Port, error) {
	p := &wirePort{l, addr, nil, map[netip.Addr]struct{}{}, newQueue[netif.Packet]()}
	if addr.Addr() == l.w.udp {
		var err error
		if p.udp, err = new(udp.Network).Open(addr); err != nil {
			return nil, err
		}
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if _, used := l.w.ports[addr]; used {
		if p.udp != nil {
			p.udp.Close()
		}
		return nil, fmt.Errorf("open %v on the wire: another adapter has this address", addr)
	}
	l.w.ports[addr] = p
	return p, nil
}

func (p *wirePort) Addr() netip.AddrPort { return p.addr }

// MTU returns that of the wire. A UDP socket may carry less, which its Send reports.
func (p *wirePort) MTU() int { return wireMTU }

func (p *wirePort) Send(pkts []netif.Packet) error {
	var out []netif.Packet // by UDP
	var index []int        // of them
	for i, k := range pkts {
		if !p.w.sendPacket(p, k) {
			out, index = append(out, k), append(index, i)
		}
	}
	if len(out) == 0 {
		return nil
	}
	err := p.udp.Send(out)
	if large, ok := errors.AsType[*netif.TooLargeError](err); ok {
		return &netif.TooLargeError{Index: index[large.Index], Err: large.Err}
	}
	return err
}

// sendPacket sends a packet on the wire. It reports false if that is for the port's UDP socket.
func (w *Wire) sendPacket(p *wirePort, k netif.Packet) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to := w.ports[k.Dst]; to != nil {
		k.Data, k.IDKnown = append([]byte(nil), k.Data...), true // and is 0
		to.put(k)
		return true
	}
	if group := k.Dst.Addr().Unmap(); group.IsMulticast() {
		w.sendGroup(p.link, k)
		if p.mac != (mac{}) {
			w.broadcast(p.mac, packetFrame(k, p.mac, groupMAC(group)))
		}
		return p.udp == nil
	}
	dst, known := w.macs[k.Dst.Addr().Unmap()]
	switch {
	case !known && p.udp != nil:
		return false
	case known && p.mac != (mac{}):
		w.broadcast(p.mac, packetFrame(k, p.mac, dst))
	}
	return true
}

// sendGroup sends a packet of a multicast group to all adapters that have joined it, but for the
// sender's, or nil if that is none. The caller holds w.mu.
func (w *Wire) sendGroup(from *link, k netif.Packet) {
	done := map[*link]bool{from: true}
	for _, p := range w.ports {
		if _, joined := p.groups[k.Dst.Addr().Unmap()]; joined && !done[p.link] {
			done[p.link] = true // its other addresses are on the same wire
			k.Data, k.IDKnown = append([]byte(nil), k.Data...), true
			p.put(k)
		}
	}
}

// Join makes the port receive packets to a multicast group.
func (p *wirePort) Join(group netip.Addr) error {
	group = group.Unmap()
	if j, ok := p.udp.(interface{ Join(netip.Addr) error }); ok {
		if err := j.Join(group); err != nil {
			return err
		}
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.groups[group] = struct{}{}
	return nil
}

// Leave ends that.
func (p *wirePort) Leave(group netip.Addr) error {
	group = group.Unmap()
	p.w.mu.Lock()
	delete(p.groups, group)
	p.w.mu.Unlock()
	if j, ok := p.udp.(interface{ Leave(netip.Addr) error }); ok {
		return j.Leave(group)
	}
	return nil
}

// OnDrop implements [netif.Drops]. The wire drops no packet that is sent, but the socket may.
func (p *wirePort) OnDrop(dropped func(sent, received int)) {
	p.dropped = func() { dropped(0, 1) }
	if d, ok := p.udp.(netif.Drops); ok {
		d.OnDrop(dropped)
	}
}

func (p *wirePort) Start(receive func([]netif.Packet)) {
	p.start(receive)
	if p.udp != nil {
		p.udp.Start(func(pkts []netif.Packet) {
			for _, k := range pkts {
				k.Data = append([]byte(nil), k.Data...)
				p.put(k)
			}
		})
	}
}

func (p *wirePort) Close() error {
	p.w.mu.Lock()
	delete(p.w.ports, p.addr)
	p.w.mu.Unlock()
	var err error
	if p.udp != nil {
		err = p.udp.Close()
	}
	p.close()
	return err
}

// End is the end of a wire that carries Ethernet frames.
type End struct {
	w   *Wire
	mac mac
	*queue[[]byte]
}

// Attach makes the end of an adapter with a MAC address, at which receive is called for the frames
// of the others, and dropped for each for which there is no room.
func (w *Wire) Attach(addr net.HardwareAddr, receive func([][]byte), dropped func()) *End {
	f := &End{w, mac(addr), newQueue[[]byte]()}
	f.dropped = dropped
	w.mu.Lock()
	w.frames[f] = struct{}{}
	w.mu.Unlock()
	f.start(receive)
	return f
}

// Send sends a frame, which the caller does not change afterwards.
func (f *End) Send(frame []byte) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	from, target, request := source(frame)
	if from.IsValid() {
		if _, known := f.w.macs[from]; !known && len(f.w.macs) == wireHosts {
			clear(f.w.macs)
		}
		f.w.macs[from] = mac(frame[6:])
	}
	if k, ok := framePacket(frame); ok {
		if to := f.w.ports[k.Dst]; to != nil {
			to.put(k)
			return
		}
		if k.Dst.Addr().IsMulticast() {
			f.w.sendGroup(nil, k)
		}
	}
	if request && f.w.beyond(target) {
		f.put(arpReply(frame, gatewayMAC))
		return
	}
	f.w.broadcast(f.mac, frame)
}

// beyond reports whether a host is to be reached by UDP. The caller holds w.mu.
func (w *Wire) beyond(host netip.Addr) bool {
	_, known := w.macs[host]
	if !w.udp.IsValid() || known {
		return false
	}
	for addr := range w.ports {
		if addr.Addr() == host {
			return false
		}
	}
	return true
}

// broadcast sends a frame to all but the adapter that it is from. The caller holds w.mu.
func (w *Wire) broadcast(from mac, frame []byte) {
	for to := range w.frames {
		if to.mac != from {
			to.put(frame)
		}
	}
}

// Detach takes the end off the wire.
func (f *End) Detach() {
	f.w.mu.Lock()
	delete(f.w.frames, f)
	f.w.mu.Unlock()
	f.close()
}

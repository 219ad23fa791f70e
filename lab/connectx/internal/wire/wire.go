//go:build linux

// Package wire is the network of emulated adapters: an Ethernet, and a parser for the headers of its
// frames.
package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/udp"
)

// Wire is an Ethernet that connects adapters of this process. A frame goes to all other adapters. A
// RoCE packet goes from engine to engine as it is, and as a frame to hosts that are no adapters: a
// guest may have another RoCE device, such as rxe, on the network interface of an adapter. With
// [Wire.UseUDP], packets to other machines leave by UDP.
//
//	engine ──► rocePort ─────┬─► rocePort of another adapter
//	                         ├─► as a frame: EthernetPorts of all others
//	                         └─► UDP socket, if its address has one and the destination is not on the wire
//	mlx5e  ──► EthernetPort ─┬─► rocePort, if it is a RoCE packet to its address
//	                         └─► EthernetPorts of all others
type Wire struct {
	mu       sync.Mutex
	roce     map[netip.AddrPort]*rocePort
	ethernet map[*EthernetPort]struct{}
	macs     map[netip.Addr]mac // of hosts, from the last frame of each
	udp      netip.Addr         // of UseUDP
}

// New makes a wire.
func New() *Wire {
	return &Wire{roce: map[netip.AddrPort]*rocePort{}, ethernet: map[*EthernetPort]struct{}{}, macs: map[netip.Addr]mac{}}
}

// UseUDP makes packets from an IPv4 address to addresses that are not on the wire leave by a UDP socket
// with that address, which this machine must have as well. The wire answers ARP requests for those
// addresses. Call it before the adapter is made.
func (w *Wire) UseUDP(addr netip.Addr) { w.udp = addr }

const (
	wireMTU   = 4500    // fits a RoCE packet with a payload of 4096 bytes
	wireQueue = 1 << 14 // packets or frames that wait for a receiver; others are dropped
	wireHosts = 1 << 10 // size of Wire.macs
)

// gatewayMAC is the MAC address of all hosts beyond the UDP socket.
var gatewayMAC = mac{0x02, 0x15, 0xb3, 0x09, 0xff, 0xff}

// queue has the packets or frames that wait for a receiver, which takes all of them at once.
type queue[T any] struct {
	mu     sync.Mutex
	change sync.Cond
	list   []T
	closed bool
	done   chan struct{} // closed when the receiver has ended; nil without one

	dropped func() // if not nil, called with mu held for each that finds no room
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

// network is the wire as the network of one adapter's engine.
type network struct {
	w    *Wire
	mac  mac // of the adapter's frames; zero if it has none
	lose atomic.Uint32
}

// Lose makes the wire lose one of so many packets that the adapter sends, by chance; 0 makes it lose none.
func (n *network) Lose(oneOf uint32) { n.lose.Store(oneOf) }

// Network returns the wire as the network of an adapter. Its packets for hosts that are no adapters
// have the MAC address addr. Without one, as on InfiniBand, it reaches adapters alone.
func (w *Wire) Network(addr net.HardwareAddr) netif.Network {
	n := &network{w: w}
	copy(n.mac[:], addr)
	return n
}

// rocePort is a port of an engine.
type rocePort struct {
	*network
	addr   netip.AddrPort
	udp    netif.Port              // nil without
	groups map[netip.Addr]struct{} // guarded by w.mu
	*queue[netif.Packet]
}

// Open opens the port with an address.
func (n *network) Open(addr netip.AddrPort) (netif.Port, error) {
	p := &rocePort{n, addr, nil, map[netip.Addr]struct{}{}, newQueue[netif.Packet]()}
	if addr.Addr() == n.w.udp {
		var err error
		if p.udp, err = new(udp.Network).Open(addr); err != nil {
			return nil, err
		}
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if _, used := n.w.roce[addr]; used {
		if p.udp != nil {
			p.udp.Close()
		}
		return nil, fmt.Errorf("open %v on the wire: another adapter has this address", addr)
	}
	n.w.roce[addr] = p
	return p, nil
}

func (p *rocePort) Addr() netip.AddrPort { return p.addr }

// MTU returns the wire's MTU. A UDP socket may carry less: Send reports that.
func (p *rocePort) MTU() int { return wireMTU }

func (p *rocePort) Send(pkts []netif.Packet) error {
	var out []netif.Packet // by UDP
	var index []int        // of out in pkts
	lose := p.lose.Load()
	for i, k := range pkts {
		if lose > 0 && rand.Uint32N(lose) == 0 {
			continue
		}
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

// sendPacket sends a packet on the wire. It reports false if the packet is for the port's UDP socket.
func (w *Wire) sendPacket(p *rocePort, k netif.Packet) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to := w.roce[k.Dst]; to != nil {
		k.Data, k.IDKnown = append([]byte(nil), k.Data...), true // and is 0
		to.put(k)
		return true
	}
	if group := k.Dst.Addr().Unmap(); group.IsMulticast() {
		w.sendGroup(p.network, k)
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

// sendGroup sends a multicast packet to all adapters that have joined its group, except the sender
// from, which may be nil. The caller holds w.mu.
func (w *Wire) sendGroup(from *network, k netif.Packet) {
	done := map[*network]bool{from: true}
	for _, p := range w.roce {
		if _, joined := p.groups[k.Dst.Addr().Unmap()]; joined && !done[p.network] {
			done[p.network] = true // an adapter has a port for each address, and gets one copy
			k.Data, k.IDKnown = append([]byte(nil), k.Data...), true
			p.put(k)
		}
	}
}

// Join makes the port receive packets to a multicast group.
func (p *rocePort) Join(group netip.Addr) error {
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

// Leave stops the port from receiving packets to a multicast group.
func (p *rocePort) Leave(group netip.Addr) error {
	group = group.Unmap()
	p.w.mu.Lock()
	delete(p.groups, group)
	p.w.mu.Unlock()
	if j, ok := p.udp.(interface{ Leave(netip.Addr) error }); ok {
		return j.Leave(group)
	}
	return nil
}

// OnDrop implements [netif.Drops]. Sending on the wire drops no packet; the UDP socket may.
func (p *rocePort) OnDrop(dropped func(sent, received int)) {
	p.dropped = func() { dropped(0, 1) }
	if d, ok := p.udp.(netif.Drops); ok {
		d.OnDrop(dropped)
	}
}

func (p *rocePort) Start(receive func([]netif.Packet)) {
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

func (p *rocePort) Close() error {
	p.w.mu.Lock()
	delete(p.w.roce, p.addr)
	p.w.mu.Unlock()
	var err error
	if p.udp != nil {
		err = p.udp.Close()
	}
	p.close()
	return err
}

// EthernetPort is the port of an adapter on the wire, for Ethernet frames.
type EthernetPort struct {
	w   *Wire
	mac mac
	*queue[[]byte]
}

// Attach connects an adapter with a MAC address. It calls receive for the frames of the other adapters,
// and dropped for each frame that finds no room.
func (w *Wire) Attach(addr net.HardwareAddr, receive func([][]byte), dropped func()) *EthernetPort {
	p := &EthernetPort{w, mac(addr), newQueue[[]byte]()}
	p.dropped = dropped
	w.mu.Lock()
	w.ethernet[p] = struct{}{}
	w.mu.Unlock()
	p.start(receive)
	return p
}

// Send sends a frame. The caller may not change it afterwards.
func (p *EthernetPort) Send(frame []byte) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	from, target, request := source(frame)
	if from.IsValid() {
		if _, known := p.w.macs[from]; !known && len(p.w.macs) == wireHosts {
			clear(p.w.macs)
		}
		p.w.macs[from] = mac(frame[6:])
	}
	if k, ok := framePacket(frame); ok {
		if to := p.w.roce[k.Dst]; to != nil {
			to.put(k)
			return
		}
		if k.Dst.Addr().IsMulticast() {
			p.w.sendGroup(nil, k)
		}
	}
	if request && p.w.beyond(target) {
		p.put(arpReply(frame, gatewayMAC))
		return
	}
	p.w.broadcast(p.mac, frame)
}

// beyond reports whether a host is reached by UDP. The caller holds w.mu.
func (w *Wire) beyond(host netip.Addr) bool {
	_, known := w.macs[host]
	if !w.udp.IsValid() || known {
		return false
	}
	for addr := range w.roce {
		if addr.Addr() == host {
			return false
		}
	}
	return true
}

// broadcast sends a frame to all adapters but the sender. The caller holds w.mu.
func (w *Wire) broadcast(from mac, frame []byte) {
	for to := range w.ethernet {
		if to.mac != from {
			to.put(frame)
		}
	}
}

// Detach disconnects the adapter.
func (p *EthernetPort) Detach() {
	p.w.mu.Lock()
	delete(p.w.ethernet, p)
	p.w.mu.Unlock()
	p.close()
}

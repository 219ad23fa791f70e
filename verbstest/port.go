package verbstest

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/goverbs/verbs/soft"
)

// receiveBatch is how many packets a device receives at once.
const receiveBatch = 64

// port is a device's attachment. n.mu guards its fields.
type port struct {
	network  *Network
	addr     netip.AddrPort
	receive  func([]soft.Packet)
	onRemove func()
	err      error // of Send, after the port has been detached
	groups   map[netip.Addr]bool

	waiting []*packet     // for a slow receiver
	queue   []*packet     // to be received
	queued  bool          // in network.ready
	done    chan struct{} // is closed when the goroutine that calls receive ends; nil: there is none

	batch   []*packet // of that goroutine
	packets []soft.Packet
}

// Addr returns the address that the port was opened with.
func (p *port) Addr() netip.AddrPort { return p.addr }

// MTU returns the size of the largest IP packet.
func (p *port) MTU() int { return p.network.opt.MTU }

// Send sends packets.
func (p *port) Send(pkts []soft.Packet) error {
	n := p.network
	n.judging.Lock()
	defer n.judging.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	n.run(now)
	var first error
	for i := range pkts {
		if p.err != nil { // The filter may have removed the device.
			first = fmt.Errorf("verbstest: send from %v: %w", p.addr, p.err)
			break
		}
		if err := n.send(p, &pkts[i], now); err != nil && first == nil {
			err.Index, first = i, err
		}
	}
	n.deliver()
	n.arm()
	return first
}

// Start calls receive for received packets until Close.
func (p *port) Start(receive func(pkts []soft.Packet)) {
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.receive == nil {
		p.receive = receive
		n.ready = append(n.ready, p)
		n.deliver()
	}
}

// Link returns the number of the link that all ports of a network are on.
func (p *port) Link() int { return 1 }

// Join makes the port a member of a multicast group.
func (p *port) Join(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != p.addr.Addr().Is4() {
		return fmt.Errorf("verbstest: %v is not a multicast group of the address family of %v", group, p.addr.Addr())
	}
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.err != nil {
		return fmt.Errorf("verbstest: join %v: %w", group, p.err)
	}
	if p.groups == nil {
		p.groups = make(map[netip.Addr]bool)
	}
	p.groups[group] = true
	return nil
}

// Leave ends the membership in a multicast group.
func (p *port) Leave(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if !p.groups[group] {
		return fmt.Errorf("verbstest: %v has not joined %v", p.addr, group)
	}
	delete(p.groups, group)
	return nil
}

// OnRemove sets the function that is called, by a goroutine of its own, when the network
// removes the port, or at once if it has been removed.
func (p *port) OnRemove(f func()) {
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	switch p.err {
	case nil:
		p.onRemove = f
	case ErrRemoved:
		go f()
	}
}

// Close detaches the port. It waits for a call of receive that has not returned, so that
// function must not call Close.
func (p *port) Close() error {
	n := p.network
	n.mu.Lock()
	if p.err == nil {
		p.onRemove = nil
		p.detach(net.ErrClosed)
	}
	done := p.done
	n.mu.Unlock()
	if done != nil {
		<-done
	}
	return nil
}

// detach takes the port from the network. The caller holds n.mu.
func (p *port) detach(err error) {
	n := p.network
	p.err = err
	delete(n.ports, p.addr)
	for _, q := range [][]*packet{p.waiting, p.queue} {
		for _, pk := range q {
			n.drop(pk, "device is gone")
		}
	}
	p.waiting, p.queue, p.groups = nil, nil, nil
	if p.onRemove != nil {
		go p.onRemove()
		p.onRemove = nil
	}
}

// put adds a packet that has arrived. The caller holds n.mu.
func (p *port) put(pk *packet) {
	n := p.network
	r := n.receivers[p.addr.Addr()]
	switch {
	case r.Queue > 0 && len(p.waiting)+len(p.queue) >= r.Queue:
		n.drop(pk, "receive queue is full")
	case r.Delay > 0 || len(p.waiting) > 0:
		p.waiting = append(p.waiting, pk)
		if len(p.waiting) == 1 {
			n.at(n.now()+r.Delay, event{port: p})
		}
	default:
		p.accept(pk)
	}
}

// serve ends the delay of the first packet that waits. The caller holds n.mu.
func (p *port) serve(now time.Duration) {
	if len(p.waiting) == 0 {
		return // The port has been detached.
	}
	p.accept(p.waiting[0])
	p.waiting = append(p.waiting[:0], p.waiting[1:]...)
	if len(p.waiting) > 0 {
		p.network.at(now+p.network.receivers[p.addr.Addr()].Delay, event{port: p})
	}
}

// accept queues a packet for receive. The caller holds n.mu.
func (p *port) accept(pk *packet) {
	p.queue = append(p.queue, pk)
	if !p.queued {
		p.queued = true
		p.network.ready = append(p.network.ready, p)
	}
}

// deliver starts goroutines for ports that have got packets. The caller holds n.mu.
func (n *Network) deliver() {
	for _, p := range n.ready {
		p.queued = false
		if p.receive != nil && p.done == nil && len(p.queue) > 0 {
			p.done = make(chan struct{})
			go p.call()
		}
	}
	n.ready = n.ready[:0]
}

func (p *port) call() {
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(p.queue) > 0 {
		p.batch = append(p.batch[:0], p.queue[:min(len(p.queue), receiveBatch)]...)
		p.queue = append(p.queue[:0], p.queue[len(p.batch):]...)
		p.packets = p.packets[:0]
		for _, pk := range p.batch {
			p.packets = append(p.packets, soft.Packet{Src: pk.src, Dst: pk.dst, TOS: pk.tos, Data: pk.data, IDKnown: true})
		}
		n.stats.Delivered += uint64(len(p.batch))
		n.unlocked(func() { p.receive(p.packets) })
		n.free = append(n.free, p.batch...)
	}
	close(p.done)
	p.done = nil
}

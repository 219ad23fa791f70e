package verbstest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft"
)

// The defaults of Options.
const (
	DefaultMTU        = 9000
	DefaultTraceLimit = 4096
)

// ErrRemoved is returned by a port that [Network.Remove] has removed.
var ErrRemoved = errors.New("device has been removed")

// step is the time that packets need at least on a network with a fake clock. It is not a round
// number, so that packets rarely arrive at the moment at which a test does something.
const step = 1003 * time.Nanosecond

// Options are the options of a Network. The zero value is a perfect network.
type Options struct {
	// Seed selects the random numbers.
	Seed uint64
	// Link is how every address reaches every other one, unless SetLink changes that.
	Link Link
	// MTU is the largest IP packet; 0 means DefaultMTU, which carries an RDMA MTU of 4096.
	MTU int
	// Filter decides about each packet, if it is not nil.
	Filter Filter
	// TraceLimit is how many packets the trace has: the last ones. 0 means DefaultTraceLimit,
	// a negative number disables the trace.
	TraceLimit int
}

// Network is a network in memory. Its methods may be called at the same time, and by a filter.
type Network struct {
	begin time.Time
	step  time.Duration // 0: packets may arrive at once
	opt   Options       // mu guards Filter and Link

	judging sync.Mutex // held while packets are judged, so that there is one order

	mu        sync.Mutex // guards the following
	closed    bool
	links     map[direction]Link
	flows     map[direction]*flow
	islands   []map[netip.Addr]bool
	receivers map[netip.Addr]Receiver
	ports     map[netip.AddrPort]*port
	staged    []*packet // sent in this step
	schedule  schedule
	ready     []*port // have got packets
	free      []*packet
	trace     trace
	stats     Stats
}

// direction is one direction between two addresses.
type direction struct{ from, to netip.Addr }

type flow struct {
	random    *rand.Rand
	last      time.Duration   // when the last packet arrives that is in order
	idle      time.Duration   // when the link has sent all packets
	departing []time.Duration // when packets that wait for the link leave
	section   int             // changes at management datagrams, see sortStaged
}

// Stats counts packets.
type Stats struct {
	Sent       uint64
	Delivered  uint64 // copies included
	Dropped    uint64 // for all reasons
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
}

// NewNetwork makes a network. It needs no Close if all devices on it are closed.
func NewNetwork(o Options) *Network {
	n := &Network{
		begin: time.Now(), opt: o,
		links: make(map[direction]Link), flows: make(map[direction]*flow),
		receivers: make(map[netip.Addr]Receiver), ports: make(map[netip.AddrPort]*port),
	}
	n.opt.MTU = cmp.Or(o.MTU, DefaultMTU)
	n.opt.TraceLimit = cmp.Or(o.TraceLimit, DefaultTraceLimit)
	if n.begin.UTC().Year() == 2000 { // The clock of a testing/synctest bubble.
		n.step = step
	}
	return n
}

// now returns the time since the network was made.
func (n *Network) now() time.Duration { return time.Since(n.begin) }

// Open attaches a device with an address, which can be any one that is not in use. If it has no
// port, that is 4791.
func (n *Network) Open(addr netip.AddrPort) (soft.Port, error) {
	ip := addr.Addr().Unmap().WithZone("")
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return nil, fmt.Errorf("verbstest: %v is not the address of a device", ip)
	}
	addr = netip.AddrPortFrom(ip, addr.Port())
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(ip, roce.Port)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, fmt.Errorf("verbstest: open %v: %w", addr, net.ErrClosed)
	case n.ports[addr] != nil:
		return nil, fmt.Errorf("verbstest: the address %v is already in use on this network", addr)
	}
	p := &port{network: n, addr: addr}
	n.ports[addr] = p
	return p, nil
}

// Close detaches all devices. It waits until none of them processes a packet, so a filter must not
// call it.
func (n *Network) Close() error {
	if n == nil {
		return net.ErrClosed
	}
	n.mu.Lock()
	n.closed = true
	ports := slices.Collect(maps.Values(n.ports))
	if n.schedule.timer != nil {
		n.schedule.timer.Stop()
	}
	n.staged, n.schedule = nil, schedule{}
	n.mu.Unlock()
	for _, p := range ports {
		p.Close()
	}
	return nil
}

// SetLink changes how packets from one address reach another one. It has no effect on packets
// that are on the way.
func (n *Network) SetLink(from, to netip.Addr, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[direction{from.Unmap(), to.Unmap()}] = l
}

// SetLinks changes all links, also those that SetLink has changed.
func (n *Network) SetLinks(l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opt.Link = l
	clear(n.links)
}

// SetReceiver changes how fast the device with an address receives.
func (n *Network) SetReceiver(addr netip.Addr, r Receiver) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.receivers[addr.Unmap()] = r
}

// SetFilter replaces the filter. Nil removes it.
func (n *Network) SetFilter(f Filter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opt.Filter = f
}

// Partition separates some addresses from all others until Heal, in both directions, and not from
// each other: of two hosts name one. Packets that would arrive meanwhile are lost.
func (n *Network) Partition(side ...netip.Addr) {
	island := make(map[netip.Addr]bool)
	for _, a := range side {
		island[a.Unmap()] = true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.islands = append(n.islands, island)
}

// Heal ends every Partition.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.islands = nil
}

// separated reports whether a partition separates a direction. The caller holds n.mu.
func (n *Network) separated(d direction) bool {
	for _, island := range n.islands {
		if island[d.from] != island[d.to] {
			return true
		}
	}
	return false
}

// Remove removes the device with an address, as when a network adapter is unplugged: the device can
// send no more from the address, and packets to it are lost. Peers get no answer. The programs that
// use the device see the removal of a device of the kernel, that is, of soft.Device.Close: their
// QPs enter the error state, connections end, open contexts get EventDeviceFatal and IDs of the
// connection manager DEVICE_REMOVAL. Remove does not wait for that. The address is free for another
// device. Remove reports whether there was a device.
func (n *Network) Remove(addr netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := false
	for a, p := range n.ports {
		if a.Addr() == addr.Unmap() {
			found = true
			p.detach(ErrRemoved)
		}
	}
	return found
}

// Stats returns how many packets the network has handled.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// Link is how packets get from one address to another one. The zero Link delivers them at once, in
// order, and loses none. Probabilities are from 0 to 1, and are independent of each other.
type Link struct {
	Delay     time.Duration // of each packet
	Jitter    time.Duration // up to this is added to Delay; packets stay in order
	Bandwidth int64         // in bits per second, of IP packets; 0: without limit
	Queue     int           // how many packets can wait for the bandwidth; more are dropped; 0: without limit

	Loss      float64
	Duplicate float64 // delivered twice
	Corrupt   float64 // one bit that the ICRC covers is changed
	Reorder   float64 // delayed by ReorderDelay more, so that later packets overtake it
}

// ReorderDelay is the additional delay of packets that a link reorders.
const ReorderDelay = 100 * time.Microsecond

// Receiver is how a device receives packets. The zero Receiver is as fast as the program.
type Receiver struct {
	Delay time.Duration // that each packet takes
	Queue int           // how many packets can wait; more are dropped; 0: without limit
}

package udp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/netif"
)

// Port is a device's attachment with one address. Its methods may be called at the same time.
type Port struct {
	addr     netip.AddrPort
	ifi      *net.Interface
	mtu      int
	options  Network
	socket   *socket
	counters counters

	// receiving is held while receive is called.
	receiving sync.Mutex

	mu      sync.Mutex // guards the following
	receive func([]netif.Packet)
	refused func(netip.AddrPort, []byte)
	groups  map[netip.Addr]*socket
	closed  bool
	readers sync.WaitGroup
}

// config is what a socket is opened with.
type config struct {
	addr                    netip.AddrPort // of the port
	group                   netip.Addr     // valid: the socket only receives packets to this group
	ifi                     *net.Interface
	readBuffer, writeBuffer int
	offload                 bool
	mtu                     int
}

func (p *Port) config(group netip.Addr) config {
	return config{
		addr: p.addr, group: group, ifi: p.ifi, mtu: p.mtu,
		readBuffer: cmp.Or(max(p.options.ReadBuffer, 0), 8<<20), writeBuffer: cmp.Or(max(p.options.WriteBuffer, 0), 4<<20), offload: !p.options.NoOffload,
	}
}

// Addr returns the address that the port was opened with.
func (p *Port) Addr() netip.AddrPort { return p.addr }

// MTU returns the MTU that the interface had when the port was opened.
func (p *Port) MTU() int { return p.mtu }

// Send sends packets from the port's address; it does not use Src. Each packet's ICRC must be for
// this address, the IPv4 identification 0 and the flag DF. A packet that cannot be sent does not
// keep later ones from being sent; the first error is returned. Send does not change Data.
func (p *Port) Send(pkts []netif.Packet) error {
	if err := p.socket.send(pkts); err != nil {
		return fmt.Errorf("udp: send from %v: %w", p.addr, err)
	}
	return nil
}

// wsaMessageSize is Windows' WSAEMSGSIZE.
const wsaMessageSize = syscall.Errno(10040)

// firstError returns the error of Send: the first one of a packet that is too large for its link,
// as sending it again does not help, or else the first one. err is packet i's.
func firstError(first, err error, i int) error {
	if tooLarge := (*netif.TooLargeError)(nil); errors.As(first, &tooLarge) {
		return first
	}
	if errors.Is(err, syscall.EMSGSIZE) || runtime.GOOS == "windows" && errors.Is(err, wsaMessageSize) {
		return &netif.TooLargeError{Index: i, Err: err}
	}
	if first != nil {
		return first
	}
	return err
}

// Start calls receive for batches of received packets until Close. Calls do not overlap.
// Addresses of packets have no zone.
func (p *Port) Start(receive func(pkts []netif.Packet)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.receive != nil {
		return
	}
	p.receive = receive
	p.read(p.socket)
	for _, s := range p.groups {
		p.read(s)
	}
}

// OnDrop implements [netif.Drops].
func (p *Port) OnDrop(dropped func(sent, received int)) { p.counters.onDrop = dropped }

// OnRefused implements [netif.Refusals].
func (p *Port) OnRefused(refused func(dst netip.AddrPort, quoted []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = refused
}

// WatchRefusals implements [netif.Refusals]. On systems other than Linux it does nothing: their
// sockets do not tell who has refused a packet.
func (p *Port) WatchRefusals() { p.socket.watchRefusals() }

// read starts the goroutine that reads a socket. The caller holds p.mu.
func (p *Port) read(s *socket) {
	receive, refused := p.receive, p.refused
	deliver := func(pkts []netif.Packet) {
		p.receiving.Lock()
		defer p.receiving.Unlock()
		receive(pkts)
	}
	p.readers.Go(func() {
		s.read(deliver, func(dst netip.AddrPort, quoted []byte) {
			if refused != nil {
				p.receiving.Lock()
				defer p.receiving.Unlock()
				refused(dst, quoted)
			}
		})
	})
}

// Link returns the number of the port's interface.
func (p *Port) Link() int { return p.ifi.Index }

// Join makes the port receive packets to a multicast group on its interface. Joining again
// changes nothing.
func (p *Port) Join(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != p.addr.Addr().Is4() {
		return fmt.Errorf("udp: %v is not a multicast group of the address family of %v", group, p.addr.Addr())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("udp: join %v: %w", group, net.ErrClosed)
	}
	if p.groups[group] != nil {
		return nil
	}
	s, err := listen(p.config(group), &p.counters)
	if err != nil {
		return fmt.Errorf("udp: join %v: %w", group, openError(netip.AddrPortFrom(group, p.addr.Port()), err))
	}
	p.groups[group] = s
	if p.receive != nil {
		p.read(s)
	}
	return nil
}

// Leave ends the membership in a multicast group. Packets that have arrived before may still
// be received.
func (p *Port) Leave(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.groups[group]
	if s == nil {
		return fmt.Errorf("udp: %v has not joined %v", p.addr, group)
	}
	delete(p.groups, group)
	return s.close()
}

// Close closes the port's sockets. It waits for a call of receive that has not returned, so
// that function must not call Close.
func (p *Port) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	var err error
	if first {
		err = p.socket.close()
		for _, s := range p.groups {
			err = errors.Join(err, s.close())
		}
	}
	p.mu.Unlock()
	p.readers.Wait()
	return err
}

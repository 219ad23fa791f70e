//go:build !linux || nordma

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/goverbs/verbs/internal/netif"
)

// receiveSize is larger than any RoCE packet.
const receiveSize = 8192

// socket is a UDP socket.
type socket struct {
	conn     *net.UDPConn
	addr     netip.AddrPort // of the port, without zone
	zone     string         // of link-local addresses
	counters *counters
}

// listen opens a socket that is bound to the port's address.
func listen(c config, counters *counters) (*socket, error) {
	if c.group.IsValid() {
		return nil, fmt.Errorf("multicast on %s: %w", runtime.GOOS, errors.ErrUnsupported)
	}
	s := &socket{addr: netip.AddrPortFrom(c.addr.Addr().WithZone(""), c.addr.Port()), zone: c.ifi.Name, counters: counters}
	var err error
	if s.conn, err = net.ListenUDP(network(s.addr), net.UDPAddrFromAddrPort(s.scoped(s.addr))); err != nil {
		return nil, err
	}
	if err := s.configure(c); err != nil {
		s.conn.Close()
		return nil, err
	}
	return s, nil
}

func network(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return "udp4"
	}
	return "udp6"
}

func (s *socket) configure(c config) error {
	// The system may not allow as much.
	for size := c.readBuffer; size >= 1<<16 && s.conn.SetReadBuffer(size) != nil; size /= 2 {
	}
	for size := c.writeBuffer; size >= 1<<16 && s.conn.SetWriteBuffer(size) != nil; size /= 2 {
	}
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = dontFragment(fd, s.addr.Addr().Is4()) }); e != nil {
		return e
	}
	return err
}

// scoped adds the interface to an address that means nothing without.
func (s *socket) scoped(a netip.AddrPort) netip.AddrPort {
	if ip := a.Addr(); ip.Is6() && (ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()) {
		return netip.AddrPortFrom(ip.WithZone(s.zone), a.Port())
	}
	return a
}

func (s *socket) close() error { return s.conn.Close() }

// sendWait is how long to wait for room in the socket at most, sendTries times for a packet and no
// more for those after one that was lost: callers hold locks that the device's other goroutines
// need.
const (
	sendWait  = 5 * time.Millisecond
	sendTries = 4
)

// send sends packets, and returns the first error. Packets for which the socket has no room in time
// are lost.
func (s *socket) send(pkts []netif.Packet) error {
	var first error
	s.conn.SetWriteDeadline(time.Now().Add(sendWait))
	timeouts := 0
	for i := 0; i < len(pkts); i++ {
		p := &pkts[i]
		s.counters.sentCalls.Add(1)
		_, err := s.conn.WriteToUDPAddrPort(p.Data, s.scoped(p.Dst))
		switch {
		case err == nil:
			s.counters.sent.Add(1)
			timeouts = 0
		case errors.Is(err, net.ErrClosed):
			s.counters.dropSent(len(pkts) - i)
			return err
		case errors.Is(err, os.ErrDeadlineExceeded) && timeouts < sendTries:
			// The deadline also passes while a long batch is sent, or while this goroutine does
			// not run; then the packet has not been tried.
			timeouts++
			s.conn.SetWriteDeadline(time.Now().Add(sendWait))
			i--
		default:
			s.counters.dropSent(1)
			first = firstError(first, err, i)
		}
	}
	return first
}

func (s *socket) watchRefusals() {}

// read calls deliver for each packet that arrives until the socket is closed.
func (s *socket) read(deliver func([]netif.Packet), _ func(netip.AddrPort, []byte)) {
	buffer := make([]byte, receiveSize)
	pkts := make([]netif.Packet, 1)
	for {
		n, src, err := s.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // for example, an earlier packet could not be sent
		}
		s.counters.receivedCalls.Add(1)
		if n == len(buffer) {
			s.counters.truncated.Add(1)
			continue
		}
		s.counters.received.Add(1)
		pkts[0] = netif.Packet{Src: netip.AddrPortFrom(src.Addr().Unmap().WithZone(""), src.Port()), Dst: s.addr, Data: buffer[:n:n]}
		deliver(pkts)
	}
}

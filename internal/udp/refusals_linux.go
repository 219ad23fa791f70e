//go:build !nordma

package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/netif"
)

// refusals makes the kernel keep the ICMP errors for packets of a socket (IP_RECVERR), for a second
// after each call of watchRefusals. It is not on all the time, because the error of one packet also
// fails the next call that sends or receives any, and errors take room in the receive buffer.
type refusals struct {
	watching atomic.Bool

	mu     sync.Mutex // guards the following
	until  time.Time
	closed bool
	timer  *time.Timer
}

const (
	refusalTime = time.Second // in which a host refuses a packet
	maxPending  = 4           // calls in a row that fail because of earlier packets
	maxRefusals = 64          // errors that are read at a time
	quotedSize  = 128         // bytes of a refused packet
)

// watchRefusals makes read report packets that are refused, if they are sent within a second.
func (s *socket) watchRefusals() {
	r := &s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.until = time.Now().Add(refusalTime)
	switch {
	case r.watching.Load():
		return
	case !s.setRefusals(1):
		return
	case r.timer == nil:
		r.timer = time.AfterFunc(refusalTime, s.endRefusals)
	default:
		r.timer.Reset(refusalTime)
	}
	r.watching.Store(true)
}

// endRefusals stops keeping errors, unless watchRefusals has been called again.
func (s *socket) endRefusals() {
	r := &s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	switch left := time.Until(r.until); {
	case r.closed:
	case left > 0:
		r.timer.Reset(left)
	default:
		s.setRefusals(0) // drops the errors that have not been read
		r.watching.Store(false)
	}
}

// close stops keeping errors for good.
func (r *refusals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

func (s *socket) setRefusals(on int) bool {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if s.addr.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	var err error
	if e := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, on) }); e != nil {
		return false
	}
	return err == nil
}

// readRefusals calls refused for the ICMP errors that say that nothing receives at a port (port
// unreachable). Others may end by themselves: the sender tries again.
func (s *socket) readRefusals(fd uintptr, refused func(dst netip.AddrPort, quoted []byte)) {
	var (
		name    [nameSize]byte
		control [256]byte
		quoted  [quotedSize]byte
	)
	for range maxRefusals {
		vector := unix.Iovec{Base: &quoted[0]}
		vector.SetLen(quotedSize)
		m := unix.Msghdr{Name: &name[0], Namelen: nameSize, Iov: &vector, Control: &control[0]}
		m.SetIovlen(1)
		m.SetControllen(len(control))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errno != 0 {
			return
		}
		if isRefusal(control[:m.Controllen]) {
			refused(addrPort(&name), quoted[:min(n, quotedSize)])
		}
	}
}

// isRefusal reports whether the control messages of an error are about a host that has refused a
// packet (struct sock_extended_err).
func isRefusal(control []byte) bool {
	for len(control) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		control = rest
		ip4 := h.Level == unix.IPPROTO_IP && h.Type == unix.IP_RECVERR
		ip6 := h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_RECVERR
		if !ip4 && !ip6 || len(data) < 16 || unix.Errno(binary.NativeEndian.Uint32(data)) != unix.ECONNREFUSED {
			continue
		}
		if origin := data[4]; origin == unix.SO_EE_ORIGIN_ICMP || origin == unix.SO_EE_ORIGIN_ICMP6 {
			return true
		}
	}
	return false
}

// tooLarge reports whether a packet for which the socket has returned EMSGSIZE is too large for its
// link. While refusals are watched, that may be the error of another packet, for which a router has
// a smaller MTU, or says that it has.
func (s *socket) tooLarge(p *netif.Packet) bool {
	if !s.refusals.watching.Load() {
		return true
	}
	ifi, err := net.InterfaceByIndex(int(s.scope))
	return err != nil || ipHeader(p.Dst.Addr())+8+len(p.Data) > ifi.MTU
}

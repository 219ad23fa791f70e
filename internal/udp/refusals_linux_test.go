//go:build !nordma

package udp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/netif"
)

// TestRefusal sends packets to a port at which nothing receives, between others: they are reported,
// with what was in them, and the others arrive. Unless they are watched, nothing is reported.
func TestRefusal(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		none := addrs(t, ip, 1)[0]
		refused := make(chan []byte, 1000)
		a.OnRefused(func(dst netip.AddrPort, quoted []byte) {
			if dst != none {
				t.Errorf("a refusal of %v, the packet was for %v", dst, none)
			}
			refused <- bytes.Clone(quoted)
		})
		collect(a, 1)
		received := collect(b, 1000)
		send := func(to netip.AddrPort, fill byte) {
			t.Helper()
			if err := a.Send([]netif.Packet{packet(a.Addr(), to, 100, fill)}); err != nil {
				t.Errorf("to %v: %v", to, err)
			}
		}
		send(none, 1) // may be refused
		for i := range byte(12) {
			send(b.Addr(), i)
			for done := false; !done; { // the kernel limits how many a second it sends
				a.WatchRefusals()
				send(none, 100+i)
				select {
				case quoted := <-refused:
					done = quoted[0] == 100+i
					if len(quoted) != 100 || quoted[0] < 100 || quoted[0] > 100+i {
						t.Errorf("a refusal with %d bytes that begin with %d", len(quoted), quoted[0])
					}
				case <-time.After(500 * time.Millisecond):
				}
			}
			if p := next(t, received); p.Data[0] != i {
				t.Errorf("packet %d has arrived, not %d", p.Data[0], i)
			}
		}
		a.socket.refusals.until = time.Time{}
		a.socket.endRefusals()
		for range 10 {
			send(none, 1)
		}
		send(b.Addr(), 99)
		if p := next(t, received); p.Data[0] != 99 {
			t.Errorf("packet %d has arrived, not 99", p.Data[0])
		}
		a.Close()
		for len(refused) > 0 { // those of a watched packet that was sent again may come late
			if quoted := <-refused; quoted[0] == 1 {
				t.Error("a refusal that was not watched")
			}
		}
	})
}

// FuzzControl reads any control messages and names, as the kernel passes them with packets and errors.
func FuzzControl(f *testing.F) {
	ancillary := func(level, kind int32, data ...byte) []byte {
		b := make([]byte, unix.CmsgSpace(len(data)))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		h.Level, h.Type = level, kind
		h.SetLen(unix.CmsgLen(len(data)))
		copy(b[unix.CmsgLen(0):], data)
		return b
	}
	word := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	refused := ancillary(unix.IPPROTO_IP, unix.IP_RECVERR, append(word(uint32(unix.ECONNREFUSED)), []byte{unix.SO_EE_ORIGIN_ICMP, 11: 0}...)...)
	packet := slices.Concat(ancillary(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, word(3)...), ancillary(unix.SOL_UDP, unix.UDP_GRO, word(1024)...),
		ancillary(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, word(9)...))
	var name [nameSize]byte
	for _, a := range []string{"10.9.0.1:4791", "[fd00:9::1]:4791"} {
		putName(&name, netip.MustParseAddrPort(a), 0)
		f.Add(refused, name[:])
		f.Add(append(ancillary(unix.IPPROTO_IP, unix.IP_TOS, 2), packet...), name[:])
	}
	s := &socket{counters: new(counters)}
	if tos, segment := s.parse(packet); tos != 3 || segment != 1024 || s.in.lost != 9 || !isRefusal(refused) || isRefusal(packet) {
		f.Errorf("TOS %d, segments of %d bytes, %d lost", tos, segment, s.in.lost)
	}
	f.Fuzz(func(t *testing.T, control, name []byte) {
		s := &socket{counters: new(counters)}
		s.parse(control)
		isRefusal(control)
		var from, again [nameSize]byte
		copy(from[:], name)
		a := addrPort(&from)
		putName(&again, a, 0)
		if got := addrPort(&again); got != a {
			t.Errorf("%v becomes %v", a, got)
		}
	})
}

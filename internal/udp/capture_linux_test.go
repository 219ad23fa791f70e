//go:build !nordma

package udp

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// inNamespace runs a test in a network namespace of its own, where all ports are free. The
// loopback interface has gsoSegments as its limit, if that is not 0.
func inNamespace(t *testing.T, gsoSegments uint32, test func()) {
	t.Helper()
	skip := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // The thread ends with the goroutine.
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = setLoopback(gsoSegments)
		}
		skip <- err
		if err == nil {
			test()
		}
	}()
	if err := <-skip; err != nil {
		t.Skip("network namespace:", err)
	}
	<-done
}

// setLoopback sets the loopback interface up, and how many segments it can send at once.
func setLoopback(gsoSegments uint32) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	h := (*unix.NlMsghdr)(unsafe.Pointer(&b[0]))
	h.Type, h.Flags, h.Seq = unix.RTM_NEWLINK, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 1
	ifi := (*unix.IfInfomsg)(unsafe.Pointer(&b[unix.SizeofNlMsghdr]))
	ifi.Index, ifi.Flags, ifi.Change = 1, unix.IFF_UP, unix.IFF_UP
	if gsoSegments > 0 {
		b = binary.NativeEndian.AppendUint16(b, 8)
		b = binary.NativeEndian.AppendUint16(b, unix.IFLA_GSO_MAX_SEGS)
		b = binary.NativeEndian.AppendUint32(b, gsoSegments)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	if _, _, err := unix.Recvfrom(fd, answer, 0); err != nil {
		return err
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// capture returns IP packets with UDP that an interface sends.
type capture struct{ fd int }

func newCapture(t *testing.T) capture {
	protocol := uint16(unix.ETH_P_ALL)<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(protocol))
	if err != nil {
		t.Skip("AF_PACKET:", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	return capture{fd}
}

// wire is a captured packet.
type wire struct {
	netif.Packet
	df bool
}

func (c capture) next(t *testing.T) wire {
	t.Helper()
	for {
		b := make([]byte, 1<<16)
		n, from, err := unix.Recvfrom(c.fd, b, 0)
		if err != nil {
			t.Error("capture:", err)
			runtime.Goexit()
		}
		b = b[:n]
		if ll := from.(*unix.SockaddrLinklayer); ll.Pkttype != unix.PACKET_OUTGOING {
			continue
		}
		var w wire
		var src, dst netip.Addr
		switch b[0] >> 4 {
		case 4:
			if b[9] != unix.IPPROTO_UDP {
				continue
			}
			src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
			w.TOS, w.ID, w.df = b[1], binary.BigEndian.Uint16(b[4:]), b[6] == 0x40 && b[7] == 0
			b = b[20:]
		case 6:
			if b[6] != unix.IPPROTO_UDP {
				continue
			}
			src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
			w.TOS, w.df = b[0]<<4|b[1]>>4, true
			b = b[40:]
		default:
			continue
		}
		w.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
		w.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
		w.Data = b[8:]
		return w
	}
}

// TestWireICRC captures packets, as the network has them, and checks their ICRC.
func TestWireICRC(t *testing.T) {
	for name, test := range map[string]struct {
		ip          string
		network     Network
		gsoSegments uint32
	}{
		"IPv4 segmented": {"127.0.0.1", Network{}, 1},
		"IPv4 plain":     {"127.0.0.1", Network{NoOffload: true}, 0},
		"IPv6 segmented": {"::1", Network{}, 1},
		"IPv6 plain":     {"::1", Network{NoOffload: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, test.gsoSegments, func() {
				ip := netip.MustParseAddr(test.ip)
				a, err := test.network.open(netip.AddrPortFrom(ip, 0))
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Close()
				dst := netip.AddrPortFrom(ip, 9)
				var pkts []netif.Packet
				for i := range 200 {
					size := 1044
					if i%50 == 49 {
						size = 64 + i/50*4
					}
					p := packet(a.Addr(), dst, size, byte(i))
					p.TOS = 2
					pkts = append(pkts, p)
				}
				c := newCapture(t)
				if err := a.Send(pkts); err != nil {
					t.Error(err)
				}
				var ids []uint16
				for i, p := range pkts {
					w := c.next(t)
					if w.Src != a.Addr() || w.Dst != dst || len(w.Data) != len(p.Data) || w.TOS != 2 || !w.df {
						t.Errorf("packet %d: from %v to %v, %d bytes, TOS %d, DF %v", i, w.Src, w.Dst, len(w.Data), w.TOS, w.df)
						return
					}
					if got, want := binary.LittleEndian.Uint32(w.Data[len(w.Data)-roce.ICRCSize:]), icrc(w.Src, w.Dst, w.ID, w.Data); got != want {
						t.Errorf("packet %d: identification %d, ICRC %#x, not %#x", i, w.ID, got, want)
					}
					ids = append(ids, w.ID)
				}
				if segmented := a.Stats().SentSegments > 0; segmented != !test.network.NoOffload {
					t.Errorf("segmented: %v", segmented)
				}
				if highest := slices.Max(ids); (highest > 0) != (test.gsoSegments > 0 && ip.Is4()) {
					t.Errorf("identifications up to %d", highest)
				}
			})
		})
	}
}

// TestSegments checks which packets are sent as segments of one.
func TestSegments(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	p := func(size int) netif.Packet { return packet(a, b, size, byte(roce.RCSendOnly)) }
	for _, test := range []struct {
		pkts []netif.Packet
		want int
	}{
		{[]netif.Packet{p(36), p(36), p(32), p(32)}, 3},
		{[]netif.Packet{p(36), p(40)}, 1},
		{[]netif.Packet{p(37), p(37)}, 1}, // their ICRC cannot be corrected
	} {
		if got := segments(test.pkts); got != test.want {
			t.Errorf("%d segments, not %d", got, test.want)
		}
	}
}

// TestWithoutSegmentation sends where the kernel refuses to segment: it needs checksums.
func TestWithoutSegmentation(t *testing.T) {
	a, b := pair(t, Network{}, "127.0.0.1")
	raw, err := a.socket.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
	if err != nil {
		t.Fatal(err)
	}
	received := collect(b, 1000)
	var pkts []netif.Packet
	for i := range 150 {
		pkts = append(pkts, packet(a.Addr(), b.Addr(), 64, byte(i)))
	}
	if err := a.Send(pkts); err != nil {
		t.Fatal(err)
	}
	for i := range pkts {
		p := next(t, received)
		if id, ok := findID(p); p.Data[0] != byte(i) || id != 0 || !ok {
			t.Fatalf("packet %d: received %d, identification %d %v", i, p.Data[0], id, ok)
		}
	}
	if s := a.Stats(); s.SentSegments != 0 || s.SendErrors != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDropsAreCounted fills the receive buffer of a port that does not read.
func TestDropsAreCounted(t *testing.T) {
	inNamespace(t, 0, func() {
		n := Network{ReadBuffer: 20000, NoOffload: true}
		a, err := n.open(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Close()
		b, err := n.open(netip.MustParseAddrPort("127.0.0.2:0"))
		if err != nil {
			t.Error(err)
			return
		}
		defer b.Close()
		reported := 0
		b.OnDrop(func(sent, received int) { reported += sent + received })
		const count = 200
		p := []netif.Packet{packet(a.Addr(), b.Addr(), 1044, 1)}
		for range count {
			a.Send(p)
		}
		received := collect(b, 2*count)
		for b.Stats().Dropped == 0 { // The kernel reports drops with later packets that find room.
			a.Send(p)
			next(t, received)
		}
		if s := b.Stats(); s.Dropped >= count || s.Dropped+s.Received < count {
			t.Errorf("%d packets and more: %+v", count, s)
		}
		b.Close()
		if s := b.Stats(); uint64(reported) != s.Dropped {
			t.Errorf("%d are reported, %d dropped", reported, s.Dropped)
		}
	})
}

// TestPacketWithoutChecksum receives an IPv6 packet as rxe sends it.
func TestPacketWithoutChecksum(t *testing.T) {
	a, b := pair(t, Network{}, "::1")
	raw, err := a.socket.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	received := collect(b, 10)
	if err := a.Send([]netif.Packet{packet(a.Addr(), b.Addr(), 64, 1)}); err != nil {
		t.Fatal(err)
	}
	next(t, received)
}

// addInterface adds the interface v0 to the namespace: the loopback interface does not receive
// IPv6 groups.
func addInterface(t *testing.T) bool {
	for _, command := range []string{
		"ip link add v0 type veth peer name v1", "ip link set v1 up", "ip link set v0 up", "ip addr add 10.9.0.1/24 dev v0",
		"ip addr add fd09::1/64 dev v0 nodad", "ip addr add fe80::9/64 dev v0 nodad",
	} {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Logf("not tested: %s: %v %s", command, err, out)
			return false
		}
	}
	// The kernel adds routes later.
	for range 1000 {
		out, err := exec.Command("ip", "-6", "route", "show", "table", "local").Output()
		if err != nil {
			t.Error(err)
			return false
		}
		if routes := string(out); strings.Contains(routes, "local fd09::1 ") && strings.Contains(routes, "local fe80::9 ") && strings.Contains(routes, "ff00::/8 dev v0") {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the interface has no routes")
	return false
}

// TestSilentNeighbour sends to a machine that does not exist: Send and Close do not wait for its
// address resolution, in which the socket has no room.
func TestSilentNeighbour(t *testing.T) {
	inNamespace(t, 0, func() {
		if !addInterface(t) {
			return
		}
		n := Network{WriteBuffer: 5000, NoOffload: true}
		a, err := n.open(netip.MustParseAddrPort("10.9.0.1:0"))
		if err != nil {
			t.Error(err)
			return
		}
		var pkts []netif.Packet
		for range 100 {
			pkts = append(pkts, packet(a.Addr(), netip.MustParseAddrPort("10.9.0.77:4791"), 1044, 1))
		}
		inTime(t, "Send", func() {
			if err := a.Send(pkts); err != nil {
				t.Error(err)
			}
		})
		if sent := a.Stats().Sent; sent == 0 || sent == uint64(len(pkts)) {
			t.Errorf("%d packets were sent at once; some have to wait", sent)
		}
		inTime(t, "Close", func() { a.Close() })
	})
}

func TestLinkLocal(t *testing.T) {
	inNamespace(t, 0, func() {
		if !addInterface(t) {
			return
		}
		a, err := new(Network).open(netip.MustParseAddrPort("[fe80::9%v0]:0"))
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Close()
		received := collect(a, 10)
		without := netip.MustParseAddrPort("[fe80::9]:4791")
		if err := a.Send([]netif.Packet{packet(without, without, 64, 1)}); err != nil {
			t.Error(err)
		}
		if got := next(t, received); got.Src != without || got.Dst != without {
			t.Errorf("from %v to %v", got.Src, got.Dst)
		}
	})
}

func TestMulticast(t *testing.T) {
	for _, test := range []struct{ ip, group, other string }{
		{"10.9.0.1", "239.1.2.3", "239.1.2.4"},
		{"fd09::1", "ff0e::1:2", "ff0e::1:3"},
		{"fd09::1", "ff02::1:2", "ff02::1:3"},
	} {
		t.Run(test.group, func(t *testing.T) {
			inNamespace(t, 0, func() {
				if !addInterface(t) {
					return
				}
				ip, group, other := netip.MustParseAddr(test.ip), netip.MustParseAddr(test.group), netip.MustParseAddr(test.other)
				var n Network
				a, err := n.open(netip.AddrPortFrom(ip, 0))
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Close()
				received := collect(a, 10)
				if err := a.Join(group); err != nil {
					t.Error(err)
					return
				}
				if err := a.Join(group); err != nil {
					t.Error("join again:", err)
				}
				to := func(ip netip.Addr, fill byte) netif.Packet {
					return packet(a.Addr(), netip.AddrPortFrom(ip, a.Addr().Port()), 64, fill)
				}
				// Packets to a group that has not been joined are not received.
				if err := a.Send([]netif.Packet{to(other, 1), to(group, 2)}); err != nil {
					t.Error(err)
				}
				if got := next(t, received); got.Data[0] != 2 || got.Dst.Addr() != group || got.Src != a.Addr() {
					t.Errorf("received %d from %v to %v", got.Data[0], got.Src, got.Dst)
				}
				if err := a.Leave(group); err != nil {
					t.Error(err)
				}
				if err := a.Leave(group); err == nil {
					t.Error("left twice")
				}
				if err := a.Send([]netif.Packet{to(group, 3), to(ip, 4)}); err != nil {
					t.Error(err)
				}
				if got := next(t, received); got.Data[0] != 4 {
					t.Errorf("received %d after Leave", got.Data[0])
				}
				if err := a.Join(ip); err == nil || !strings.Contains(err.Error(), "multicast group") {
					t.Errorf("join %v: %v", ip, err)
				}
			})
		})
	}
}

package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// addrs are loopback addresses of each family, with ports that are free.
func addrs(t testing.TB, ip string, n int) (free []netip.AddrPort) {
	t.Helper()
	for range n {
		c, err := net.ListenPacket("udp", net.JoinHostPort(ip, "0"))
		if err != nil {
			t.Skipf("%s: %v", ip, err)
		}
		defer c.Close()
		free = append(free, c.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return free
}

// families runs a test with IPv4 and IPv6, with and without offload.
func families(t *testing.T, test func(t *testing.T, n Network, ip string)) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s offload=%v", ip, !off), func(t *testing.T) { test(t, Network{NoOffload: off}, ip) })
		}
	}
}

func open(t testing.TB, n Network, a netip.AddrPort) *Port {
	t.Helper()
	p, err := n.open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// pair opens two ports.
func pair(t testing.TB, n Network, ip string) (a, b *Port) {
	t.Helper()
	free := addrs(t, ip, 2)
	return open(t, n, free[0]), open(t, n, free[1])
}

// collect starts a port and returns what it receives.
func collect(p *Port, capacity int) <-chan netif.Packet {
	c := make(chan netif.Packet, capacity)
	p.Start(func(pkts []netif.Packet) {
		for _, p := range pkts {
			p.Data = slices.Clone(p.Data)
			c <- p
		}
	})
	return c
}

func next(t testing.TB, c <-chan netif.Packet) netif.Packet {
	t.Helper()
	select {
	case p := <-c:
		return p
	case <-time.After(10 * time.Second):
		t.Fatal("no packet")
		panic("unreachable")
	}
}

// icrc computes the ICRC as the specification says, from the headers.
func icrc(src, dst netip.AddrPort, id uint16, data []byte) uint32 {
	b := bytes.Repeat([]byte{0xff}, 8)
	udp := 8 + len(data)
	if src.Addr().Is4() {
		b = append(b, 0x45, 0xff)
		b = binary.BigEndian.AppendUint16(b, uint16(20+udp))
		b = binary.BigEndian.AppendUint16(b, id)
		b = append(b, 0x40, 0, 0xff, 17, 0xff, 0xff)
	} else {
		b = append(b, 0x6f, 0xff, 0xff, 0xff)
		b = binary.BigEndian.AppendUint16(b, uint16(udp))
		b = append(b, 17, 0xff)
	}
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0xff, 0xff)
	bth := len(b)
	b = append(b, data[:len(data)-roce.ICRCSize]...)
	b[bth+4] = 0xff
	if roce.Opcode(data[0]) == roce.RCFlush {
		b = append(b, data[:len(data)-roce.ICRCSize]...) // as rxe does
	}
	return crc32.ChecksumIEEE(b)
}

// packet makes a packet of a size with the ICRC for identification 0.
func packet(src, dst netip.AddrPort, size int, fill byte) netif.Packet {
	data := bytes.Repeat([]byte{fill}, size)
	binary.LittleEndian.PutUint32(data[size-roce.ICRCSize:], icrc(src, dst, 0, data))
	return netif.Packet{Src: src, Dst: dst, Data: data}
}

// findID returns the identification, below 128, for which a packet's ICRC is right.
func findID(p netif.Packet) (uint16, bool) {
	got := binary.LittleEndian.Uint32(p.Data[len(p.Data)-roce.ICRCSize:])
	for id := range uint16(128) {
		if icrc(p.Src, p.Dst, id, p.Data) == got {
			return id, true
		}
	}
	return 0, false
}

func TestSendKeepsOrderAndContents(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		received := collect(b, 1000)
		sizes := []int{64, 1044, 1044, 1044, 1044, 300, 1044, 1044, 16, 16, 16, 4120, 4120, 64, 65, 20}
		for range 100 {
			sizes = append(sizes, 1044)
		}
		sizes = append(sizes, 1000)
		var pkts []netif.Packet
		for i, size := range sizes {
			pkts = append(pkts, packet(a.Addr(), b.Addr(), size, byte(i)))
		}
		before := make([][]byte, len(pkts))
		for i := range pkts {
			before[i] = slices.Clone(pkts[i].Data)
		}
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		for i, sent := range pkts {
			if !bytes.Equal(sent.Data, before[i]) {
				t.Fatalf("Send has changed packet %d", i)
			}
			got := next(t, received)
			if got.Src != a.Addr() || got.Dst != b.Addr() || got.TOS != 0 {
				t.Fatalf("packet %d: from %v to %v with TOS %d", i, got.Src, got.Dst, got.TOS)
			}
			end := sizes[i] - roce.ICRCSize
			if len(got.Data) != sizes[i] || !bytes.Equal(got.Data[:end], sent.Data[:end]) {
				t.Fatalf("packet %d: %d bytes, not the %d that were sent", i, len(got.Data), sizes[i])
			}
			if _, ok := findID(got); !ok {
				t.Fatalf("packet %d: bad ICRC", i)
			}
		}
		s := a.Stats()
		if s.Sent != uint64(len(pkts)) || b.Stats().Received != s.Sent {
			t.Errorf("sent %d of %d packets, received %d", s.Sent, len(pkts), b.Stats().Received)
		}
		if offload := s.SentSegments > 0; offload != hasOffload(n) {
			t.Errorf("%d packets were segments", s.SentSegments)
		}
	})
}

// TestLongBatch sends for longer than a send may wait for room. There is always room: what the
// receiver has none for is dropped there.
func TestLongBatch(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		pkts := slices.Repeat([]netif.Packet{packet(a.Addr(), b.Addr(), 64, 1)}, 4000)
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); s.Sent != uint64(len(pkts)) {
			t.Errorf("sent %d of %d packets", s.Sent, len(pkts))
		}
	})
}

func TestTOS(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		received := collect(b, 10)
		want := []uint8{0, 2, 0x68 | 1, 0x68 | 1, 3, 0}
		var pkts []netif.Packet
		for _, tos := range want {
			p := packet(a.Addr(), b.Addr(), 64, 1)
			p.TOS = tos
			pkts = append(pkts, p)
		}
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !hasTOS {
				want[i] = 0
			}
			if got := next(t, received); got.TOS != want[i] {
				t.Errorf("packet %d: TOS %#x, not %#x", i, got.TOS, want[i])
			}
		}
	})
}

func TestSendErrorDoesNotStopLaterPackets(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		received := collect(b, 10)
		other := netip.MustParseAddrPort("[2001:db8::1]:4791")
		if ip == "::1" {
			other = netip.MustParseAddrPort("192.0.2.1:4791")
		}
		good := packet(a.Addr(), b.Addr(), 64, 1)
		wrong, large := good, good
		wrong.Dst = other
		large.Data = make([]byte, 65530)
		err := a.Send([]netif.Packet{good, wrong, good, large, good, good, good})
		if err == nil || !strings.Contains(err.Error(), "send from") {
			t.Errorf("Send: %v", err)
		}
		for range 5 {
			next(t, received)
		}
		if got := a.Stats().SendErrors; got != 2 {
			t.Errorf("%d errors", got)
		}
	})
}

func TestOpenErrors(t *testing.T) {
	used := addrs(t, "127.0.0.1", 1)[0]
	var n Network
	p := open(t, n, used)
	for _, test := range []struct {
		addr  netip.AddrPort
		text  string
		errno error
	}{
		{used, fmt.Sprintf("port %d of 127.0.0.1 is already in use", p.Addr().Port()), syscall.EADDRINUSE},
		{netip.MustParseAddrPort("192.0.2.1:4791"), "no interface has the address 192.0.2.1", syscall.EADDRNOTAVAIL},
		{netip.MustParseAddrPort("0.0.0.0:4791"), "not the address of an interface", nil},
		{netip.MustParseAddrPort("[ff02::1]:4791"), "not the address of an interface", nil},
		{netip.AddrPort{}, "not the address of an interface", nil},
	} {
		_, err := n.Open(test.addr)
		if err == nil || !strings.Contains(err.Error(), test.text) || test.errno != nil && !errors.Is(err, test.errno) {
			t.Errorf("%v: %v", test.addr, err)
		}
	}
	if err := openError(netip.MustParseAddrPort("10.0.0.1:4791"), syscall.EADDRINUSE); !strings.Contains(err.Error(), "rxe driver") {
		t.Error(err)
	}
	if hint := aliasHint("darwin", netip.MustParseAddr("127.0.0.2")); hint != " (sudo ifconfig lo0 alias 127.0.0.2)" {
		t.Error(hint)
	}
	if hint := aliasHint("darwin", netip.MustParseAddr("10.0.0.1")) + aliasHint("linux", netip.MustParseAddr("127.0.0.2")); hint != "" {
		t.Error(hint)
	}
	if err := openError(netip.MustParseAddrPort("10.0.0.1:47"), syscall.EACCES); !strings.Contains(err.Error(), "no permission") {
		t.Error(err)
	}
}

func TestOpenDefaults(t *testing.T) {
	p, err := new(Network).Open(netip.MustParseAddrPort("[::ffff:127.0.0.7]:0"))
	if err != nil {
		t.Skip(err) // The port is in use.
	}
	defer p.Close()
	if p.Addr() != netip.MustParseAddrPort("127.0.0.7:4791") {
		t.Errorf("address %v", p.Addr())
	}
	if ifi, err := interfaceOf(netip.MustParseAddr("127.0.0.1")); err != nil || p.MTU() != min(ifi.MTU, 65535) {
		t.Errorf("MTU %d, %v", p.MTU(), err)
	}
}

func TestClose(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		before := runtime.NumGoroutine()
		a, b := pair(t, n, ip)
		received := collect(b, 1<<20)
		pkts := []netif.Packet{packet(a.Addr(), b.Addr(), 64, 1), packet(a.Addr(), b.Addr(), 64, 2)}
		var senders sync.WaitGroup
		for range 4 {
			senders.Go(func() {
				for a.Send(pkts) == nil {
				}
			})
		}
		next(t, received)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		senders.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		count := len(received)
		if err := b.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := b.Send(pkts); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
		b.Start(func([]netif.Packet) { t.Error("receive after Close") })
		if len(received) != count {
			t.Error("receive was called after Close")
		}
		until(t, "the goroutines' end", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// until waits until ok returns true. It is labtest.Until, which needs this package.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func TestCloseBeforeStart(t *testing.T) {
	a, _ := pair(t, Network{}, "127.0.0.1")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.options.Open(a.Addr()); err != nil {
		t.Errorf("the address is not free after Close: %v", err)
	}
}

func TestNoAllocation(t *testing.T) {
	families(t, func(t *testing.T, n Network, ip string) {
		a, b := pair(t, n, ip)
		var pkts []netif.Packet
		for range 32 {
			pkts = append(pkts, packet(a.Addr(), b.Addr(), 1044, 1))
		}
		pkts = append(pkts, packet(a.Addr(), b.Addr(), 64, 1))
		arrived := make(chan struct{}, 1000)
		b.Start(func(pkts []netif.Packet) {
			for range pkts {
				arrived <- struct{}{}
			}
		})
		round := func() {
			if err := a.Send(pkts); err != nil {
				t.Fatal(err)
			}
			for range pkts {
				<-arrived
			}
		}
		for range 20 {
			round()
		}
		if got := testing.AllocsPerRun(200, round); got > 0 {
			t.Errorf("%v allocations for %d packets", got, len(pkts))
		}
	})
}

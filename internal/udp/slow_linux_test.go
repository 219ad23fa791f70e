//go:build !nordma

package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/netif"
)

// inTime fails the test if f does not return.
func inTime(t *testing.T, what string, f func()) bool {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(5 * time.Second):
		t.Errorf("%s has not returned after 5 s", what)
		return false
	}
}

// TestCloseUnderFlood closes a port to which packets come faster than they are received.
func TestCloseUnderFlood(t *testing.T) {
	p := open(t, Network{}, addrs(t, "127.0.0.1", 1)[0])
	p.Start(func([]netif.Packet) { time.Sleep(time.Millisecond) })
	stop := make(chan struct{})
	defer close(stop)
	for range 2 {
		c, err := net.Dial("udp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer c.Close()
			for {
				select {
				case <-stop:
					return
				default:
					c.Write([]byte{1})
				}
			}
		}()
	}
	until(t, "packets", func() bool { return p.Stats().ReceivedCalls >= 10 })
	if !inTime(t, "Close under a flood", func() { p.Close() }) {
		stop <- struct{}{} // so that cleanup can end
		stop <- struct{}{}
	}
}

// slow makes the loopback interface of the test's network namespace a slow link.
func slow(t *testing.T, rate string) {
	out, err := exec.Command("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", rate, "burst", "70000", "limit", "100000000").CombinedOutput()
	if err != nil {
		t.Skipf("tc: %v\n%s", err, out)
	}
}

// TestSlowLink sends more than a socket holds through a slow link: Send does not wait, and the
// packets arrive, in order.
func TestSlowLink(t *testing.T) {
	inNamespace(t, 0, func() {
		slow(t, "200mbit")
		a, b := pair(t, Network{WriteBuffer: 1 << 16}, "127.0.0.1")
		const count = 2000
		received := collect(b, count)
		var batch []netif.Packet
		ok := inTime(t, "Send", func() {
			for i := range count {
				p := packet(a.Addr(), b.Addr(), 1000, 0)
				binary.BigEndian.PutUint32(p.Data[16:], uint32(i))
				if batch = append(batch, p); len(batch) == 20 {
					if err := a.Send(batch); err != nil {
						t.Error(err)
					}
					batch = batch[:0]
				}
			}
		})
		if !ok {
			return
		}
		for i := range uint32(count) {
			if got := binary.BigEndian.Uint32(next(t, received).Data[16:]); got != i {
				t.Errorf("packet %d has come as number %d", got, i)
				return
			}
		}
		if s := a.Stats(); s.Sent != count || s.SendErrors != 0 {
			t.Errorf("sent %+v", s)
		}
	})
}

// TestStoppedLink sends through a link that hardly carries anything: what waits is limited, and
// Close does not wait for it.
func TestStoppedLink(t *testing.T) {
	inNamespace(t, 0, func() {
		slow(t, "8kbit")
		a, b := pair(t, Network{WriteBuffer: 1 << 16}, "127.0.0.1")
		var batch []netif.Packet
		for range 20 {
			batch = append(batch, packet(a.Addr(), b.Addr(), 1000, 0))
		}
		var err error
		reported := 0
		a.OnDrop(func(sent, received int) { reported += sent + received })
		if !inTime(t, "Send", func() {
			for range 1000 {
				if e := a.Send(batch); e != nil {
					err = e
				}
			}
		}) {
			return
		}
		if !errors.Is(err, syscall.ENOBUFS) {
			t.Errorf("20 MB to a link of 8 kbit/s: %v", err)
		}
		a.socket.sending.Lock()
		if got := a.socket.backlog.bytes; got > maxBacklog || got < maxBacklog/2 {
			t.Errorf("%d bytes wait", got)
		}
		if n := len(a.socket.backlog.packets); uint64(reported+n)+a.Stats().Sent != 20_000 {
			t.Errorf("of 20000 packets %d were sent, %d wait, and %d are reported as dropped", a.Stats().Sent, n, reported)
		}
		a.socket.sending.Unlock()
		inTime(t, "Close", func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		if sent := a.Stats().Sent; uint64(reported)+sent != 20_000 {
			t.Errorf("of 20000 packets %d were sent, and %d are reported as dropped", sent, reported)
		}
	})
}

// TestTooLargeBehindBacklog sends a packet that the link does not carry while others wait: it is refused as at any time.
func TestTooLargeBehindBacklog(t *testing.T) {
	inNamespace(t, 0, func() {
		slow(t, "8kbit")
		a, b := pair(t, Network{WriteBuffer: 1 << 16}, "127.0.0.1")
		defer a.Close()
		batch := slices.Repeat([]netif.Packet{packet(a.Addr(), b.Addr(), 1000, 0)}, 20)
		waiting := func() int {
			a.socket.sending.Lock()
			defer a.socket.sending.Unlock()
			return len(a.socket.backlog.packets)
		}
		for waiting() == 0 {
			if err := a.Send(batch); err != nil {
				t.Fatal(err)
			}
		}
		before := waiting()
		err := a.Send([]netif.Packet{batch[0], packet(a.Addr(), b.Addr(), 65_520, 0), batch[0]})
		if tooLarge, ok := errors.AsType[*netif.TooLargeError](err); !ok || tooLarge.Index != 1 {
			t.Errorf("a packet of 65,520 bytes: %v", err)
		}
		if n := waiting(); n > before+2 {
			t.Errorf("%d packets wait, and %d did", n, before)
		}
	})
}

// TestLeaveUnderFlood leaves a group whose packets the port is receiving, while others come.
func TestLeaveUnderFlood(t *testing.T) {
	inNamespace(t, 0, func() {
		a, b := pair(t, Network{}, "127.0.0.1")
		group := netip.MustParseAddr("239.1.2.3")
		entered := make(chan struct{}, 1)
		b.Start(func([]netif.Packet) {
			select {
			case entered <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		})
		stop := make(chan struct{})
		defer close(stop)
		p := packet(a.Addr(), netip.AddrPortFrom(group, b.Addr().Port()), 64, 1)
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
					a.Send([]netif.Packet{p})
				}
			}
		}()
		for range 5 {
			if err := b.Join(group); err != nil {
				t.Error(err)
				return
			}
			<-entered
			if n := len(b.groups[group].in.buffer[0]) * receiveMessages; n > 256<<10 {
				t.Errorf("%d bytes for a group", n)
			}
			if !inTime(t, "Leave", func() { b.Leave(group) }) {
				return
			}
		}
	})
}

// TestSmallerMTU sends through an interface whose MTU has become smaller: what is too large is
// reported, with its place in the list, and the rest arrives.
func TestSmallerMTU(t *testing.T) {
	inNamespace(t, 0, func() {
		for _, n := range []Network{{}, {NoOffload: true}} {
			if out, err := exec.Command("ip", "link", "set", "lo", "mtu", "9000").CombinedOutput(); err != nil {
				t.Skipf("ip: %v\n%s", err, out)
			}
			a, b := pair(t, n, "127.0.0.1")
			received := collect(b, 100)
			if out, err := exec.Command("ip", "link", "set", "lo", "mtu", "1500").CombinedOutput(); err != nil {
				t.Fatalf("ip: %v\n%s", err, out)
			}
			var pkts []netif.Packet
			sizes := []int{64, 64, 1400, 1400, 2048, 2048, 2048, 64, 1472, 9000}
			for i, size := range sizes {
				pkts = append(pkts, packet(a.Addr(), b.Addr(), size, byte(i)))
			}
			if n.NoOffload {
				a.WatchRefusals() // then the error may be another packet's
				if a.socket.tooLarge(&pkts[0]) || !a.socket.tooLarge(&pkts[4]) {
					t.Error("which packets are too large is not known")
				}
			}
			err := a.Send(pkts)
			var tooLarge *netif.TooLargeError
			if !errors.As(err, &tooLarge) || tooLarge.Index != 4 || !errors.Is(err, syscall.EMSGSIZE) {
				t.Errorf("%+v: %v", n, err)
			}
			for i, size := range sizes {
				if size > 1472 {
					continue
				}
				if p := next(t, received); len(p.Data) != size || p.Data[0] != byte(i) {
					t.Errorf("packet of %d bytes with %d, want %d with %d", len(p.Data), p.Data[0], size, i)
				}
			}
			a.Close()
			b.Close()
		}
	})
}

package verbstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
)

// endpoint is a port that collects the PSN of what it receives.
type endpoint struct {
	soft.Port
	mu      sync.Mutex
	psns    []int
	packets []soft.Packet
	last    time.Time
}

func attach(t testing.TB, n *Network, ip netip.Addr) *endpoint {
	t.Helper()
	p, err := n.Open(netip.AddrPortFrom(ip, 0))
	if err != nil {
		t.Fatal(err)
	}
	e := &endpoint{Port: p}
	p.Start(func(pkts []soft.Packet) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, p := range pkts {
			var d roce.Packet
			if err := d.Decode(p.Data); err != nil {
				e.psns = append(e.psns, -1)
			} else {
				e.psns = append(e.psns, int(d.PSN))
			}
			p.Data = slices.Clone(p.Data)
			e.packets = append(e.packets, p)
			e.last = time.Now()
		}
	})
	t.Cleanup(func() { p.Close() })
	return e
}

// received returns the PSNs that have been received, and forgets them.
func (e *endpoint) received() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	psns := e.psns
	e.psns = nil
	return psns
}

// data encodes a packet.
func data(src, dst netip.AddrPort, p roce.Packet) []byte {
	p.PKey = roce.DefaultPKey
	flow, err := roce.NewFlow(src, dst)
	if err != nil {
		panic(err)
	}
	return flow.AppendICRC(p.Append(nil), 0)
}

// send sends packets with the PSNs from first on, in one batch.
func (e *endpoint) send(t testing.TB, to netip.Addr, first, count int) {
	t.Helper()
	dst := netip.AddrPortFrom(to, roce.Port)
	var pkts []soft.Packet
	for i := range count {
		p := roce.Packet{Opcode: roce.RCSendOnly, DestQP: 17, PSN: roce.PSN(first + i), Payload: make([]byte, 64)}
		pkts = append(pkts, soft.Packet{Src: e.Addr(), Dst: dst, Data: data(e.Addr(), dst, p)})
	}
	if err := e.Send(pkts); err != nil {
		t.Fatal(err)
	}
}

// ack sends an acknowledgement.
func (e *endpoint) ack(t testing.TB, to netip.Addr, psn int) {
	t.Helper()
	dst := netip.AddrPortFrom(to, roce.Port)
	p := roce.Packet{Opcode: roce.RCAcknowledge, DestQP: 18, PSN: roce.PSN(psn)}
	if err := e.Send([]soft.Packet{{Dst: dst, Data: data(e.Addr(), dst, p)}}); err != nil {
		t.Fatal(err)
	}
}

func numbers(from, count int) (s []int) {
	for i := range count {
		s = append(s, from+i)
	}
	return s
}

// bubble runs a test with two endpoints in a synctest bubble.
func bubble(t *testing.T, o Options, test func(t *testing.T, n *Network, a, b *endpoint)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(o)
		test(t, n, attach(t, n, addrA), attach(t, n, addrB))
	})
}

// settle lets everything that happens within a second happen.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestDeliversInOrder(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		for i := range 10 {
			a.send(t, addrB, i*100, 100)
		}
		settle()
		if got := b.received(); !slices.Equal(got, numbers(0, 1000)) {
			t.Errorf("received %v", got)
		}
		if p := b.packets[0]; p.Src != a.Addr() || p.Dst != b.Addr() || !p.IDKnown || p.ID != 0 {
			t.Errorf("received %+v", p)
		}
		flow, _ := roce.NewFlow(a.Addr(), b.Addr())
		if !flow.Verify(b.packets[0].Data, 0) {
			t.Error("ICRC is wrong")
		}
		if s := n.Stats(); s.Sent != 1000 || s.Delivered != 1000 || s.Dropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestDeliversWithRealClock(t *testing.T) {
	for _, l := range []Link{{}, {Delay: 50 * time.Microsecond, Jitter: 100 * time.Microsecond}} {
		n := NewNetwork(Options{Link: l})
		a, b := attach(t, n, addrA), attach(t, n, addrB)
		for i := range 100 {
			a.send(t, addrB, i*10, 10)
		}
		var got []int
		for end := time.Now().Add(time.Minute); len(got) < 1000 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			got = append(got, b.received()...)
		}
		if !slices.Equal(got, numbers(0, 1000)) {
			t.Errorf("%+v: received %v", l, got)
		}
	}
}

func TestLink(t *testing.T) {
	const count = 1000
	for name, test := range map[string]struct {
		link  Link
		check func(got []int, s Stats) bool
	}{
		"loss": {Link{Loss: 0.1}, func(got []int, s Stats) bool {
			return s.Dropped > 50 && s.Dropped < 200 && len(got) == count-int(s.Dropped) && slices.IsSorted(got)
		}},
		"duplicate": {Link{Duplicate: 0.1}, func(got []int, s Stats) bool {
			return s.Duplicated > 50 && s.Duplicated < 200 && len(got) == count+int(s.Duplicated) && len(slices.Compact(got)) == count
		}},
		"reorder": {Link{Reorder: 0.1}, func(got []int, s Stats) bool {
			unsorted := !slices.IsSorted(got)
			slices.Sort(got)
			return unsorted && s.Reordered > 50 && s.Reordered < 200 && slices.Equal(got, numbers(0, count))
		}},
		"jitter": {Link{Delay: time.Millisecond, Jitter: 10 * time.Millisecond}, func(got []int, s Stats) bool {
			return slices.Equal(got, numbers(0, count))
		}},
		"corrupt": {Link{Corrupt: 0.1}, func(got []int, s Stats) bool {
			return s.Corrupted > 50 && s.Corrupted < 200 && len(got) == count
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{Seed: 1, Link: test.link}, func(t *testing.T, n *Network, a, b *endpoint) {
				a.send(t, addrB, 0, count)
				settle()
				if got, s := b.received(), n.Stats(); !test.check(got, s) {
					t.Errorf("received %v, %+v", got, s)
				}
			})
		})
	}
}

func TestCorruptionIsDetectable(t *testing.T) {
	bubble(t, Options{Link: Link{Corrupt: 1}}, func(t *testing.T, n *Network, a, b *endpoint) {
		a.send(t, addrB, 0, 2000)
		settle()
		flow, _ := roce.NewFlow(a.Addr(), b.Addr())
		for i, p := range b.packets {
			if flow.Verify(p.Data, 0) {
				t.Errorf("packet %d has the right ICRC", i)
			}
		}
	})
}

func TestDelay(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		for _, d := range []time.Duration{0, time.Microsecond, time.Millisecond, time.Hour} {
			n.SetLinks(Link{Delay: d})
			begin := time.Now()
			a.send(t, addrB, 0, 1)
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			if took := b.last.Sub(begin); took != max(d, n.step) {
				t.Errorf("delay %v took %v", d, took)
			}
		}
	})
}

func TestBandwidth(t *testing.T) {
	bubble(t, Options{Link: Link{Bandwidth: 1_000_000, Queue: 10}}, func(t *testing.T, n *Network, a, b *endpoint) {
		begin := time.Now()
		a.send(t, addrB, 0, 20)
		settle()
		// One is being sent, 10 wait.
		if got := b.received(); !slices.Equal(got, numbers(0, 11)) {
			t.Errorf("received %v", got)
		}
		size := 20 + 8 + roce.BTHSize + 64 + roce.ICRCSize
		want := n.step + 11*time.Duration(size)*8*time.Microsecond
		if took := b.last.Sub(begin); took != want {
			t.Errorf("took %v, not %v", took, want)
		}
		if !strings.Contains(n.Trace(), "link queue is full") {
			t.Error(n.Trace())
		}
	})
}

func TestSetLinkIsForOneDirection(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		n.SetLink(addrA, addrB, Link{Loss: 1})
		a.send(t, addrB, 0, 1)
		b.send(t, addrA, 0, 1)
		settle()
		if len(b.received()) != 0 || len(a.received()) != 1 {
			t.Error(n.Trace())
		}
		n.SetLinks(Link{})
		a.send(t, addrB, 0, 1)
		settle()
		if len(b.received()) != 1 {
			t.Error(n.Trace())
		}
	})
}

func TestPartition(t *testing.T) {
	bubble(t, Options{Link: Link{Delay: time.Millisecond}}, func(t *testing.T, n *Network, a, b *endpoint) {
		c := attach(t, n, addrC)
		all := []*endpoint{a, b, c}
		// reach returns what each endpoint receives from the others.
		reach := func() string {
			for _, from := range all {
				for _, to := range all {
					from.send(t, to.Addr().Addr(), int(from.Addr().Addr().As4()[3]), 1)
				}
			}
			settle()
			var s []string
			for _, to := range all {
				got := to.received()
				slices.Sort(got)
				s = append(s, strings.Trim(fmt.Sprint(got), "[]"))
			}
			return strings.Join(s, ",")
		}
		for _, test := range []struct {
			name string
			do   func()
			want string
		}{
			{"no fault", func() {}, "1 2 3,1 2 3,1 2 3"},
			{"partition of A and B", func() { n.Partition(addrA, addrB) }, "1 2,1 2,3"},
			{"another partition of A", func() { n.Partition(addrA) }, "1,2,3"},
			{"healed", n.Heal, "1 2 3,1 2 3,1 2 3"},
			{"one direction", func() { n.SetLink(addrA, addrB, Link{Loss: 1}) }, "1 2 3,2 3,1 2 3"},
		} {
			test.do()
			if got := reach(); got != test.want {
				t.Errorf("%s: %s, not %s", test.name, got, test.want)
			}
		}
		n.SetLink(addrA, addrB, Link{Delay: time.Millisecond})
		// Packets on the way are lost.
		a.send(t, addrB, 1, 1)
		time.Sleep(time.Millisecond / 2)
		n.Partition(addrB)
		settle()
		if got := b.received(); len(got) != 0 || !strings.Contains(n.Trace(), "dropped: partition") {
			t.Errorf("received %v", got)
		}
	})
}

func TestSlowReceiver(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		n.SetReceiver(addrB, Receiver{Delay: time.Millisecond, Queue: 5})
		begin := time.Now()
		a.send(t, addrB, 0, 10)
		settle()
		if got := b.received(); !slices.Equal(got, numbers(0, 5)) || b.last.Sub(begin) != 5*time.Millisecond+n.step {
			t.Errorf("received %v after %v", got, b.last.Sub(begin))
		}
		if !strings.Contains(n.Trace(), "receive queue is full") {
			t.Error(n.Trace())
		}
		n.SetReceiver(addrB, Receiver{})
		a.send(t, addrB, 0, 10)
		settle()
		if got := b.received(); len(got) != 10 {
			t.Errorf("received %v", got)
		}
	})
}

func TestFilter(t *testing.T) {
	dropThirdAck := Nth(3, func(p *Packet) bool { return p.Kind == Ack }, Drop)
	bubble(t, Options{Filter: dropThirdAck}, func(t *testing.T, n *Network, a, b *endpoint) {
		for i := range 5 {
			a.ack(t, addrB, i)
		}
		settle()
		a.send(t, addrB, 5, 3)
		settle()
		if got := b.received(); !slices.Equal(got, []int{0, 1, 3, 4, 5, 6, 7}) {
			t.Errorf("received %v", got)
		}
		n.SetFilter(func(p *Packet) Action {
			switch p.PSN {
			case 1:
				return Action{Copies: 2}
			case 2:
				return Action{Delay: time.Millisecond}
			case 3:
				return Action{Corrupt: true}
			}
			return Pass
		})
		a.send(t, addrB, 0, 5)
		settle()
		got := b.received()
		if len(got) != 7 || !slices.Equal(got[:4], []int{0, 1, 1, 1}) || got[5] != 4 || got[6] != 2 {
			t.Errorf("received %v", got)
		}
		if s := n.Stats(); s.Corrupted != 1 || s.Duplicated != 2 {
			t.Errorf("%+v", s)
		}
		n.SetFilter(nil)
		a.send(t, addrB, 0, 5)
		settle()
		if got := b.received(); !slices.Equal(got, numbers(0, 5)) {
			t.Errorf("received %v", got)
		}
	})
}

func TestFilterSeesPackets(t *testing.T) {
	const qp = 0x123456
	cm := append([]byte{1, roce.CMClass, 2, 3, 15: 0, 16: 0, 17: byte(roce.AttrREQ)}, make([]byte, 256-18)...)
	ack := func(s roce.Syndrome) roce.Packet {
		return roce.Packet{Opcode: roce.RCAcknowledge, AETH: roce.AETH{Syndrome: s}}
	}
	for _, test := range []struct {
		packet      roce.Packet
		kind        Kind
		cm          string
		first, last bool
	}{
		{roce.Packet{Opcode: roce.RCSendFirst}, Send, "", true, false},
		{roce.Packet{Opcode: roce.RCSendMiddle}, Send, "", false, false},
		{roce.Packet{Opcode: roce.Opcode(roce.UC) | roce.RCSendLastImm}, Send, "", false, true},
		{roce.Packet{Opcode: roce.RCWriteOnly}, Write, "", true, true},
		{roce.Packet{Opcode: roce.RCReadRequest}, ReadRequest, "", true, true},
		{roce.Packet{Opcode: roce.RCReadResponseMiddle}, ReadResponse, "", false, false},
		{roce.Packet{Opcode: roce.RCCompareSwap}, Atomic, "", true, true},
		{roce.Packet{Opcode: roce.RCAtomicAcknowledge}, AtomicResponse, "", true, true},
		{roce.Packet{Opcode: roce.RCAtomicWrite, Payload: make([]byte, 8)}, AtomicWrite, "", true, true},
		{roce.Packet{Opcode: roce.RCFlush}, Flush, "", true, true},
		{ack(roce.ACKUnlimited), Ack, "", true, true},
		{ack(roce.NAKSequence), Nak, "", true, true},
		{ack(roce.RNRNAK(1)), RNRNak, "", true, true},
		{roce.Packet{Opcode: roce.UDSendOnly}, Datagram, "", true, true},
		{roce.Packet{Opcode: roce.UDSendOnly, DestQP: roce.GSIQP, Payload: cm}, CM, "REQ", true, true},
	} {
		if test.packet.DestQP == 0 {
			test.packet.DestQP = qp
		}
		test.packet.PSN = 77
		src := netip.AddrPortFrom(addrA, roce.Port)
		var p Packet
		p.decode(&header{data: data(src, src, test.packet)})
		if p.err != nil || p.Kind != test.kind || p.CM != test.cm || p.QP != test.packet.DestQP || p.PSN != 77 || p.First != test.first || p.Last != test.last || p.PayloadLen != len(test.packet.Payload) {
			t.Errorf("%v: kind %v, %+v", &p, p.Kind, p)
		}
		if p.String() != p.decoded.String() {
			t.Error(p.String())
		}
	}
	var p Packet
	p.decode(&header{data: []byte("short")})
	if p.Kind != Other || !strings.HasPrefix(p.String(), "not RoCE") {
		t.Errorf("%v: %v", p.Kind, &p)
	}
}

func TestRemove(t *testing.T) {
	bubble(t, Options{Link: Link{Delay: time.Millisecond}}, func(t *testing.T, n *Network, a, b *endpoint) {
		removed := make(chan struct{})
		b.Port.(interface{ OnRemove(func()) }).OnRemove(func() { close(removed) })
		// The peer dies in the middle.
		n.SetFilter(func(p *Packet) Action {
			if p.PSN == 3 {
				n.Remove(addrB)
			}
			return Pass
		})
		for i := range 6 {
			a.send(t, addrB, i, 1)
			time.Sleep(10 * time.Millisecond)
		}
		<-removed
		if got := b.received(); !slices.Equal(got, numbers(0, 3)) {
			t.Errorf("received %v", got)
		}
		if err := b.Send([]soft.Packet{{Dst: a.Addr(), Data: make([]byte, 64)}}); !errors.Is(err, ErrRemoved) {
			t.Errorf("Send of a removed device: %v", err)
		}
		if !strings.Contains(n.Trace(), "no device has the address") {
			t.Error(n.Trace())
		}
		if n.Remove(addrB) {
			t.Error("removed twice")
		}
		b2 := attach(t, n, addrB)
		a.send(t, addrB, 9, 1)
		settle()
		if got := b2.received(); !slices.Equal(got, []int{9}) {
			t.Errorf("the new device received %v", got)
		}
	})
}

func TestRemoveWithWaitingPackets(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		n.SetReceiver(addrB, Receiver{Delay: time.Millisecond})
		a.send(t, addrB, 0, 5)
		time.Sleep(2500 * time.Microsecond)
		n.Remove(addrB)
		settle()
		if got := b.received(); !slices.Equal(got, numbers(0, 2)) || n.Stats().Dropped != 3 {
			t.Errorf("received %v, %+v", got, n.Stats())
		}
	})
}

func TestMulticast(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		type member interface {
			Join(netip.Addr) error
			Leave(netip.Addr) error
		}
		c := attach(t, n, addrC)
		group := netip.MustParseAddr("239.0.0.1")
		for _, e := range []*endpoint{b, c} {
			if err := e.Port.(member).Join(group); err != nil {
				t.Fatal(err)
			}
		}
		n.Partition(addrC)
		a.send(t, group, 1, 1)
		settle()
		if got := b.received(); !slices.Equal(got, []int{1}) || b.packets[0].Dst.Addr() != group || len(a.received()) != 0 || len(c.received()) != 0 {
			t.Errorf("received %v\n%s", got, n.Trace())
		}
		n.Heal()
		if err := b.Port.(member).Leave(group); err != nil {
			t.Error(err)
		}
		if b.Port.(member).Leave(group) == nil || b.Port.(member).Join(addrA) == nil || b.Port.(member).Join(netip.MustParseAddr("ff0e::1")) == nil {
			t.Error("no error")
		}
		a.send(t, group, 2, 1)
		settle()
		if got := c.received(); !slices.Equal(got, []int{2}) || len(b.received()) != 0 {
			t.Errorf("received %v", got)
		}
	})
}

func TestOpenErrors(t *testing.T) {
	n := NewNetwork(Options{})
	attach(t, n, addrA)
	for addr, text := range map[string]string{
		"10.0.0.1:0":    "already in use",
		"0.0.0.0:0":     "not the address of a device",
		"239.1.1.1:0":   "not the address of a device",
		"10.0.0.9:4791": "",
		"10.0.0.1:4792": "",
	} {
		p, err := n.Open(netip.MustParseAddrPort(addr))
		if text == "" && err == nil {
			p.Close()
		} else if text == "" || err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	n.Close()
	if _, err := n.Open(netip.AddrPortFrom(addrB, 0)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open after Close: %v", err)
	}
}

func TestMTU(t *testing.T) {
	bubble(t, Options{MTU: 1500}, func(t *testing.T, n *Network, a, b *endpoint) {
		if a.MTU() != 1500 {
			t.Errorf("MTU %d", a.MTU())
		}
		send := func(size int) error {
			return a.Send([]soft.Packet{{Dst: b.Addr(), Data: make([]byte, size)}})
		}
		if err := send(1472); err != nil {
			t.Error(err)
		}
		if err := send(1473); !errors.Is(err, syscall.EMSGSIZE) || !strings.Contains(err.Error(), "larger than the MTU 1500") {
			t.Error(err)
		}
		settle()
		if got := b.received(); len(got) != 1 {
			t.Errorf("received %v", got)
		}
	})
}

// pingPong sends messages of several QPs back and forth under faults, each QP from a goroutine
// of its own, and returns the trace.
func pingPong(t *testing.T, seed uint64) (trace string) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Options{Seed: seed, Link: Link{
			Delay: 10 * time.Microsecond, Jitter: 5 * time.Microsecond, Loss: 0.05, Duplicate: 0.05, Corrupt: 0.05, Reorder: 0.05,
		}})
		for _, ip := range []netip.Addr{addrA, addrB, addrC} {
			p, err := n.Open(netip.AddrPortFrom(ip, 0))
			if err != nil {
				t.Fatal(err)
			}
			p.Start(func(pkts []soft.Packet) {
				answers := make(map[uint32][]soft.Packet)
				for _, in := range pkts {
					var d roce.Packet
					if d.Decode(in.Data) == nil && d.PSN < 20 {
						d.PSN++
						answers[d.DestQP] = append(answers[d.DestQP], soft.Packet{Dst: in.Src, Data: data(p.Addr(), in.Src, d)})
					}
				}
				for _, pkts := range answers {
					go p.Send(pkts)
				}
			})
			defer p.Close()
			for qp := range 8 {
				for _, other := range []netip.Addr{addrA, addrB, addrC} {
					go func() {
						dst := netip.AddrPortFrom(other, roce.Port)
						pk := roce.Packet{Opcode: roce.RCSendOnly, DestQP: uint32(qp + 2), PSN: 0}
						p.Send([]soft.Packet{{Dst: dst, Data: data(p.Addr(), dst, pk)}})
					}()
				}
			}
		}
		settle()
		trace = n.Trace()
	})
	return trace
}

func TestSameSeedSameTrace(t *testing.T) {
	first := pingPong(t, 1)
	if lines := strings.Count(first, "\n"); lines < 200 {
		t.Fatalf("%d packets", lines)
	}
	for range 10 {
		if again := pingPong(t, 1); again != first {
			t.Fatalf("another trace with the same seed:\n%s\n%s", first, again)
		}
	}
	if pingPong(t, 2) == first {
		t.Error("the same trace with another seed")
	}
}

func TestManagementDatagramsStayBehind(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		dst := b.Addr()
		var pkts []soft.Packet
		for i, qp := range []uint32{9, 3, roce.GSIQP, 9, 3} {
			p := roce.Packet{Opcode: roce.UDSendOnly, DestQP: qp, PSN: roce.PSN(i)}
			pkts = append(pkts, soft.Packet{Dst: dst, Data: data(a.Addr(), dst, p)})
		}
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := b.received(); !slices.Equal(got, []int{1, 0, 2, 4, 3}) {
			t.Errorf("received %v", got)
		}
	})
}

func TestCloseEndsGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	n := NewNetwork(Options{Link: Link{Delay: time.Millisecond}})
	a, b := attach(t, n, addrA), attach(t, n, addrB)
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for i := 0; a.Send([]soft.Packet{{Dst: b.Addr(), Data: make([]byte, 64)}}) == nil; i++ {
			}
		})
	}
	until(t, "a packet", func() bool { return len(b.received()) > 0 })
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	b.received()
	senders.Wait()
	if got := b.received(); len(got) != 0 {
		t.Errorf("%d packets after Close", len(got))
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	until(t, "the goroutines' end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestIdleNetworkHasNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	n := NewNetwork(Options{})
	a, b := attach(t, n, addrA), attach(t, n, addrB)
	a.send(t, addrB, 0, 10)
	got := 0
	until(t, "the packets", func() bool {
		got += len(b.received())
		return got == 10
	})
	until(t, "the goroutines' end", func() bool { return runtime.NumGoroutine() <= before })
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

func TestCloseWaitsForReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Options{})
		a := attach(t, n, addrA)
		p, err := n.Open(netip.AddrPortFrom(addrB, 0))
		if err != nil {
			t.Fatal(err)
		}
		var returned bool
		p.Start(func([]soft.Packet) {
			time.Sleep(time.Second)
			returned = true
		})
		a.send(t, addrB, 0, 1)
		time.Sleep(time.Millisecond)
		p.Close()
		if !returned {
			t.Error("Close did not wait for receive")
		}
	})
}

// TestPendingPacketsDoNotKeepABubble ends a bubble while packets are on the way.
func TestPendingPacketsDoNotKeepABubble(t *testing.T) {
	bubble(t, Options{Link: Link{Delay: time.Hour}}, func(t *testing.T, n *Network, a, b *endpoint) {
		a.send(t, addrB, 0, 5)
		time.Sleep(time.Second)
		a.send(t, addrB, 5, 5)
	})
}

func TestPacketsBeforeStart(t *testing.T) {
	n := NewNetwork(Options{})
	a := attach(t, n, addrA)
	p, err := n.Open(netip.AddrPortFrom(addrB, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	a.send(t, addrB, 0, 3)
	got := make(chan int, 3)
	p.Start(func(pkts []soft.Packet) { got <- len(pkts) })
	if n := <-got; n != 3 {
		t.Errorf("received %d packets", n)
	}
}

func TestFilterPanics(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		n.step = 0 // The filter is called by Send.
		n.SetFilter(func(*Packet) Action { panic("filter") })
		func() {
			defer func() {
				if recover() != "filter" {
					t.Error("the panic is lost")
				}
			}()
			a.send(t, addrB, 0, 1)
		}()
		n.SetFilter(nil)
		a.send(t, addrB, 1, 1)
		settle()
		if got := b.received(); !slices.Equal(got, []int{1}) {
			t.Errorf("received %v", got)
		}
	})
}

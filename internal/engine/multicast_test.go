package engine

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// inTime ends the test if f does not return.
func inTime(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		panic(what + " hangs") // nothing could be closed
	}
}

// joinNetwork is a network whose ports have to join groups. Leave waits for receive, as closing a
// socket waits for the goroutine that reads it.
type joinNetwork struct{ *testNetwork }

type joinPort struct {
	netif.Port
	receiving sync.Mutex
}

func (n joinNetwork) Open(addr netip.AddrPort) (netif.Port, error) {
	p, err := n.testNetwork.Open(addr)
	return &joinPort{Port: p}, err
}

func (p *joinPort) Start(receive func([]netif.Packet)) {
	p.Port.Start(func(pkts []netif.Packet) {
		p.receiving.Lock()
		defer p.receiving.Unlock()
		receive(pkts)
	})
}

func (p *joinPort) Join(netip.Addr) error { return nil }

func (p *joinPort) Leave(netip.Addr) error {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	return nil
}

// datagramPacket returns a datagram to a group, or to one QP if qpn is not multicastQPN.
func datagramPacket(t testing.TB, src, dst netip.AddrPort, qpn uint32) netif.Packet {
	t.Helper()
	flow := must(roce.NewFlow(src, dst))(t)
	p := roce.Packet{
		Opcode: roce.UDSendOnly, PKey: roce.DefaultPKey, DestQP: qpn, Payload: []byte("datagram"),
		DETH: roce.DETH{QKey: testQKey, SrcQP: 99},
	}
	return netif.Packet{Src: src, Dst: dst, Data: flow.AppendICRC(p.Append(nil), 0), IDKnown: true}
}

// TestLeaveUnderTraffic leaves a group, as its last member, while datagrams to the group are being
// received.
func TestLeaveUnderTraffic(t *testing.T) {
	network := joinNetwork{newTestNetwork(1, faults{queue: 64})}
	dev := must(New(Config{Name: "soft0", Network: network, Addrs: []netip.Addr{addrA}}))(t)
	n := node{t: t, dev: dev, pd: must(dev.AllocPD())(t)}
	n.cq, n.rcq = n.newCQ(64), n.newCQ(64)
	member := n.newQP(verbs.UD)
	member.connect(member)
	group := netip.MustParseAddr("239.1.2.3")
	sender := must(network.Open(netip.AddrPortFrom(addrB, roce.Port)))(t)
	pkt := datagramPacket(t, sender.Addr(), netip.AddrPortFrom(group, roce.Port), multicastQPN)
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				sender.Send([]netif.Packet{pkt, pkt, pkt, pkt})
			}
		}
	})
	for range 100 {
		inTime(t, "joining and leaving", func() {
			if err := member.AttachMulticast(group.As16()); err != nil {
				t.Error(err)
			}
			before := n.counter("rcvd_pkts")
			until(t, "a packet", func() bool { return n.counter("rcvd_pkts") != before })
			if err := member.DetachMulticast(group.As16()); err != nil {
				t.Error(err)
			}
		})
	}
	if dev.groups.attached != 0 || len(dev.groups.members) != 0 || member.groups != 0 {
		t.Errorf("%d QPs of %d groups remain", dev.groups.attached, len(dev.groups.members))
	}
	inTime(t, "Close", func() { dev.Close() })
	close(stop)
	sending.Wait()
}

// TestMixedBatch receives datagrams to a QP, to its group, to the connection manager and to a DC target, which takes
// none, in one batch, in every order.
func TestMixedBatch(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	a, b := n.newQP(verbs.UD), n.newQP(verbs.UD)
	group := netip.MustParseAddr("239.1.2.3")
	src, local := netip.AddrPortFrom(addrB, roce.Port), n.dev.gids.at(0).local
	for _, q := range []*conn{a, b} {
		q.connect(q)
		if err := q.AttachMulticast(group.As16()); err != nil {
			t.Fatal(err)
		}
	}
	kinds := []netif.Packet{
		datagramPacket(t, src, local, a.Num()), datagramPacket(t, src, local, b.Num()),
		datagramPacket(t, src, netip.AddrPortFrom(group, roce.Port), multicastQPN), datagramPacket(t, src, local, 1),
		datagramPacket(t, src, local, n.newTarget(1).Num()),
	}
	recv := newReceiver(n.dev, n.dev.gids.at(0))
	got := map[uint32]int{}
	for order := range 125 { // base 5, three packets
		for _, q := range []*conn{a, b} {
			for range 3 {
				q.postRecv(1, n.sge(0, 100))
			}
		}
		batch := []netif.Packet{kinds[order%5], kinds[order/5%5], kinds[order/25]}
		inTime(t, "receive", func() { recv.receive(batch) })
		for wc, ok := n.rcq.poll(); ok; wc, ok = n.rcq.poll() {
			if wc.Status == verbs.WCSuccess {
				got[wc.QPNum]++
			}
		}
		for _, q := range []*conn{a, b} { // drop the other receives
			q.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
			q.connect(q)
		}
	}
	// Of 3 × 125 packets a fifth is of each kind; a QP takes its own and those to the group.
	if want := 3 * 125 / 5 * 2; got[a.Num()] != want || got[b.Num()] != want {
		t.Errorf("received %v, want %d each", got, want)
	}
	for _, q := range []*conn{a, b} {
		if err := q.DetachMulticast(group.As16()); err != nil {
			t.Error(err)
		}
	}
}

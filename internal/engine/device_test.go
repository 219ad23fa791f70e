package engine

import (
	"bytes"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/netif"
)

// TestAttributes compares attributes with rxe's.
func TestAttributes(t *testing.T) {
	net := newTestNetwork(1, faults{})
	ip6 := netip.MustParseAddr("fd00::1")
	n := newNode(t, net, 64, addrA, ip6)
	a, p := n.dev.Attr(), n.dev.PortAttr()
	if a.MaxQPWR != 1<<20 || a.MaxSGE != 32 || a.MaxCQE != 32767 || a.MaxQPRDAtomic != 128 || a.CapFlags&(1<<17) == 0 || a.NodeGUID == (verbs.GUID{}) || a.SysImageGUID != a.NodeGUID {
		t.Errorf("device %+v", a)
	}
	if p.State != verbs.PortActive || p.ActiveMTU != 5 || p.MaxMTU != 5 || uint32(p.MaxMessage) != 1<<31 || p.GIDs != 256 || p.PKeys != 1 || p.LinkLayer != verbs.LinkEthernet {
		t.Errorf("port %+v", p)
	}
	gids := n.dev.GIDs()
	if len(gids) != 3 || gids[0].GID.Addr() != addrA || gids[1].GID.Addr() != ip6 || !gids[2].GID.Addr().IsLinkLocalUnicast() {
		t.Errorf("GIDs %v", gids)
	}
	if i := n.dev.GIDIndex(ip6); i != 1 {
		t.Errorf("index %d", i)
	}
	if i := n.dev.GIDIndex(addrB); i != -1 {
		t.Errorf("index %d", i)
	}
	if _, ok := n.dev.GID(3); ok {
		t.Error("GID 3")
	}
	for mtu, want := range map[int]verbs.MTU{1500: 3, 9000: 5, 1280: 3, 600: 2, 68: 1, 4096: 4, 65535: 5} {
		net := newTestNetwork(1, faults{})
		net.mtu = mtu
		if got := newNode(t, net, 64, addrA).dev.PortAttr().ActiveMTU; got != want {
			t.Errorf("network of %d bytes: MTU %v, want %v", mtu, got, want)
		}
	}
}

// TestManyAddresses: a device has as many addresses as address vectors can name, and says which it leaves out.
func TestManyAddresses(t *testing.T) {
	var addrs []netip.Addr
	for i := range 300 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	var left []netip.Addr
	cfg := Config{Name: "many", Network: newTestNetwork(1, faults{}), Addrs: addrs, Unusable: func(a netip.Addr, _ error) { left = append(left, a) }}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if gids := d.GIDs(); len(gids) != 255 || gids[254].GID.Addr() != addrs[254] || !slices.Equal(left, addrs[255:]) {
		t.Errorf("%d GIDs, and %v are left out", len(gids), left)
	}
	cfg.Unusable = nil
	if d, err := New(cfg); err == nil || !strings.Contains(err.Error(), "300 addresses, and a device takes 1 to 255") {
		t.Error(d, err)
	}
}

// TestIPv6 connects by other addresses than the first.
func TestIPv6(t *testing.T) {
	net := newTestNetwork(1, faults{})
	ip := [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	a, b := newNode(t, net, 8192, addrA, ip[0]), newNode(t, net, 8192, addrB, ip[1])
	for i := 1; i <= 2; i++ {
		x, y := a.newQP(verbs.RC), b.newQP(verbs.RC)
		use := func(to *node) func(*verbs.QPAttr) {
			gid, _ := to.dev.GID(i)
			return func(q *verbs.QPAttr) { q.AV.SGIDIndex, q.AV.DGID = uint8(i), gid }
		}
		x.connect(y, use(b))
		y.connect(x, use(a))
		testWrite(t, x, y, 3000)
	}
	x, y := a.newQP(verbs.UD), b.newQP(verbs.UD)
	x.connect(y)
	y.connect(x)
	gid, _ := b.dev.GID(1)
	ah := must(a.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, SGIDIndex: 1, Port: 1, TrafficClass: 0x12}))(t)
	y.postRecv(1, b.sge(0, 100))
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 5)}, To: verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}})
	b.rcq.expect(t, 1, verbs.WCSuccess)
	src, dst := ip[0].As16(), ip[1].As16()
	if h := b.mem[:40]; h[0] != 0x61 || h[1] != 0x20 || h[6] != 17 || !bytes.Equal(h[8:24], src[:]) || !bytes.Equal(h[24:], dst[:]) {
		t.Errorf("header %x", h)
	}
	for _, tt := range []struct {
		av  verbs.AddressVector
		err error
	}{
		{verbs.AddressVector{DGID: gid, SGIDIndex: 1, Port: 1}, syscall.EINVAL},               // not global
		{verbs.AddressVector{Global: true, DGID: gid, SGIDIndex: 1, Port: 2}, syscall.EINVAL}, // no such port
		{verbs.AddressVector{Global: true, DGID: gid, SGIDIndex: 9, Port: 1}, host.ENODATA},
		{verbs.AddressVector{Global: true, DGID: gid, SGIDIndex: 0, Port: 1}, syscall.EINVAL}, // other family
		{verbs.AddressVector{Global: true, SGIDIndex: 1, Port: 1}, syscall.EINVAL},
	} {
		if _, err := a.pd.CreateAH(tt.av); !errors.Is(err, tt.err) {
			t.Errorf("%+v: %v", tt.av, err)
		}
	}
}

// TestRemove removes a device in use.
func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newTestNetwork(1, faults{})
		a, b := newNode(t, net, 4096, addrA), newNode(t, net, 4096, addrB)
		var events []verbs.AsyncEventType
		a.dev.OnEvent(func(e verbs.AsyncEventType) { events = append(events, e) })
		x, y := pair(a, b, verbs.RC, func(q *verbs.QPAttr) { q.RetryCount = 2 })
		x.postRecv(1)
		x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend}) // waits for a receive
		a.dev.Remove()
		a.dev.Remove()
		a.cq.expect(t, 2, verbs.WCFlushErr)
		a.rcq.expect(t, 1, verbs.WCFlushErr)
		if len(events) != 2 || events[1] != verbs.EventDeviceFatal {
			t.Errorf("events %v", events)
		}
		if s := a.dev.PortAttr().State; s != verbs.PortDown {
			t.Errorf("port is %v", s)
		}
		if _, err := a.dev.AllocPD(); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("AllocPD: %v", err)
		}
		if err := x.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("Modify: %v", err)
		}
		if err := x.Destroy(); err != nil {
			t.Error(err)
		}
		y.post(verbs.SendWR{ID: 3, Opcode: verbs.OpSend})
		b.cq.expect(t, 3, verbs.WCRetryExcErr)
		for range 2 {
			if err := a.dev.Close(); err != nil {
				t.Error(err)
			}
		}
		b.dev.Close()
	})
}

// TestDestroyAfterClose destroys a QP that waited for an answer when its device was closed.
func TestDestroyAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newTestNetwork(1, faults{})
		a, b := newNode(t, net, 64, addrA), newNode(t, net, 64, addrB)
		x, _ := pair(a, b, verbs.RC)
		b.dev.Close()
		x.post(verbs.SendWR{Opcode: verbs.OpSend})
		a.dev.Close()
		if err := x.Destroy(); err != nil {
			t.Error(err)
		}
	})
}

// TestUse destroys objects that others depend on.
func TestUse(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	x := n.newQP(verbs.RC)
	if err := n.cq.Destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("CQ: %v", err)
	}
	if err := n.pd.Destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("PD: %v", err)
	}
	for what, f := range map[string]func() error{"QP": x.Destroy, "MR": n.mr.Destroy} {
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := f(); err == nil {
			t.Errorf("%s: destroyed twice", what)
		}
	}
	for what, f := range map[string]func() error{"CQ": n.cq.Destroy, "recv CQ": n.rcq.Destroy, "PD": n.pd.Destroy} {
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := f(); err == nil {
			t.Errorf("%s: destroyed twice", what)
		}
	}
	if _, err := n.pd.RegisterMR(n.addr(0), 8, 0, 0); err == nil {
		t.Error("MR of a PD that has ended")
	}
	if _, err := n.pd.CreateQP(QPInit{Type: verbs.RC, SendCQ: n.cq.CQ, RecvCQ: n.cq.CQ}); err == nil {
		t.Error("QP of a PD that has ended")
	}
}

// TestCapacities makes queues of extreme sizes.
func TestCapacities(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	for _, tt := range []struct{ in, out verbs.QPCap }{
		{verbs.QPCap{}, verbs.QPCap{}},
		{verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}},
		{verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}, verbs.QPCap{MaxSendWR: 127, MaxRecvWR: 127, MaxSendSGE: 4, MaxRecvSGE: 2, MaxInline: 64}},
		{verbs.QPCap{MaxSendWR: 5, MaxInline: 512, MaxSendSGE: 32}, verbs.QPCap{MaxSendWR: 7, MaxSendSGE: 32, MaxInline: 512}},
	} {
		q := must(n.pd.CreateQP(QPInit{Type: verbs.RC, SendCQ: n.cq.CQ, RecvCQ: n.cq.CQ, Cap: tt.in}))(t)
		if q.Cap() != tt.out {
			t.Errorf("%+v: %+v, want %+v", tt.in, q.Cap(), tt.out)
		}
	}
	for _, c := range []verbs.QPCap{{MaxSendWR: 1<<20 + 1}, {MaxRecvWR: -1}, {MaxSendSGE: 33}, {MaxRecvSGE: 33}, {MaxInline: 513}} {
		if _, err := n.pd.CreateQP(QPInit{Type: verbs.RC, SendCQ: n.cq.CQ, RecvCQ: n.cq.CQ, Cap: c}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := n.pd.CreateQP(QPInit{Type: 1, SendCQ: n.cq.CQ, RecvCQ: n.cq.CQ}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("GSI QP: %v", err)
	}
	for _, entries := range []int{0, -1, 1 << 15} {
		if _, err := n.dev.CreateCQ(CQInit{Entries: entries}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CQ of %d: %v", entries, err)
		}
	}
	for _, i := range []SRQInit{{}, {MaxWR: 1<<20 + 1}, {MaxWR: 1, MaxSGE: 28}} {
		if _, err := n.pd.CreateSRQ(i); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("SRQ %+v: %v", i, err)
		}
	}
}

// TestDestroyWaits deregisters memory that a peer writes. The memory does not change
// afterwards.
func TestDestroyWaits(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newNode(t, net, 64<<10, addrA), newNode(t, net, 64<<10, addrB)
	for range 20 {
		x, y := pair(a, b, verbs.RC)
		mem := alignedBytes(64 << 10)
		mr := b.register(mem, verbs.AccessAll)
		fill(a.mem, 1)
		for i := range uint64(8) {
			x.post(verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 64<<10)}, RemoteAddr: mr.iova, RKey: mr.RKey()})
		}
		time.Sleep(time.Millisecond / 10)
		if err := mr.Destroy(); err != nil {
			t.Fatal(err)
		}
		fill(mem, 2)
		copied := bytes.Clone(mem)
		for range 8 {
			a.cq.next(t)
		}
		if !bytes.Equal(mem, copied) {
			t.Fatal("memory has changed after Destroy")
		}
		x.Destroy()
		y.Destroy()
	}
}

// TestConcurrent uses a device from many goroutines, and closes it meanwhile.
func TestConcurrent(t *testing.T) {
	net := newTestNetwork(1, faults{loss: .01})
	before := runtime.NumGoroutine()
	a, b := newNode(t, net, 1<<20, addrA), newNode(t, net, 1<<20, addrB)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	for g := range 6 {
		x, y := a, b
		if g%3 == 0 {
			y = a // to itself
		}
		wg.Go(func() {
			for round := 0; !stopped(); round++ {
				cq := x.newCQ(100)
				q := x.newQP(verbs.RC, func(i *QPInit) { i.SendCQ = cq.CQ })
				p := y.newQP(verbs.RC)
				q.connect(p)
				p.connect(q)
				mr := must(y.pd.RegisterMR(y.addr(0), 1<<20, y.addr(0), verbs.AccessAll))(t)
				for i := range 10 {
					p.postRecv(1, y.sge(4096*g, 4096))
					wr := verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.sge(0, 10000)}, RemoteAddr: y.addr(0), RKey: mr.RKey()}
					if i%2 == 0 {
						wr.Opcode = verbs.OpRDMARead
					}
					wr.Flags = verbs.SendSignaled
					q.put(&wr)
					q.Doorbell()
				}
				if round%2 == 0 {
					cq.next(t)
				}
				mr.Destroy()
				q.Destroy()
				p.Destroy()
				cq.Destroy()
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	close(stop)
	wg.Wait()
	var closing sync.WaitGroup
	for _, n := range []*node{a, b, a} {
		closing.Go(func() { n.dev.Close() })
	}
	closing.Wait()
	until(t, "the goroutines' end", func() bool { return runtime.NumGoroutine() <= before })
}

// failingNetwork has no port for some addresses.
type failingNetwork struct{ *testNetwork }

func (n failingNetwork) Open(a netip.AddrPort) (netif.Port, error) {
	if a.Addr().IsLinkLocalUnicast() || a.Addr() == addrB {
		return nil, syscall.EADDRNOTAVAIL
	}
	return n.testNetwork.Open(a)
}

// TestOpen makes devices on a network that lacks addresses.
func TestOpen(t *testing.T) {
	net := failingNetwork{newTestNetwork(1, faults{})}
	ip6 := netip.MustParseAddr("fd00::1")
	d, err := New(Config{Network: net, Addrs: []netip.Addr{ip6}})
	if err != nil {
		t.Fatal(err)
	}
	if g := d.GIDs(); len(g) != 1 {
		t.Errorf("GIDs %v", g)
	}
	d.Close()
	for _, cfg := range []Config{
		{Network: net},
		{Network: net, Addrs: []netip.Addr{addrA, addrB}},
		{Network: net, Addrs: []netip.Addr{addrA, addrA}},
		{Network: net, Addrs: []netip.Addr{addrA}, MTU: 6},
	} {
		if d, err := New(cfg); err == nil {
			t.Errorf("%+v", cfg)
			d.Close()
		}
	}
	if len(net.ports) != 0 {
		t.Errorf("ports are left: %v", net.ports)
	}
}

package engine

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/roce"
)

// guest is what a device model has of its guest: queues of any length, and completions.
type guest struct {
	n     *node
	mu    sync.Mutex
	sends []func(w *abi.RxeSendWqe, sges []abi.RxeSge, inline []byte)
	recvs []abi.RxeSge // of 1 SGE
	got   uint64       // receives that the engine has taken
	done  chan Completion
	full  bool // Deliver has no room
}

func newGuest(n *node) *guest { return &guest{n: n, done: make(chan Completion, 4096)} }

func (g *guest) refillSend(r *Ring) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.sends) > 0 {
		w, sges, inline := r.NextSend()
		if w == nil {
			return
		}
		*w = abi.RxeSendWqe{}
		g.sends[0](w, sges, inline)
		g.sends = g.sends[1:]
		r.Publish()
	}
}

func (g *guest) refillRecv(r *Ring) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.recvs) > 0 {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		*w = abi.RxeRecvWqe{WrId: g.got}
		sges[0] = g.recvs[0]
		w.Dma.NumSge, w.Dma.Length = 1, g.recvs[0].Length
		g.recvs = g.recvs[1:]
		g.got++
		r.Publish()
	}
}

func (g *guest) recv(n int, sge verbs.SGE) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range n {
		g.recvs = append(g.recvs, abi.RxeSge{Addr: sge.Addr, Length: sge.Length, Lkey: sge.LKey})
	}
}

// send adds a SEND with one SGE.
func (g *guest) send(id uint64, flags verbs.SendFlags, sge verbs.SGE) {
	g.add(func(w *abi.RxeSendWqe, sges []abi.RxeSge, _ []byte) {
		w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = id, abi.IB_UVERBS_WR_SEND, uint32(flags)
		sges[0] = abi.RxeSge{Addr: sge.Addr, Length: sge.Length, Lkey: sge.LKey}
		w.Dma.NumSge, w.Dma.Length = 1, sge.Length
	})
}

func (g *guest) add(f func(*abi.RxeSendWqe, []abi.RxeSge, []byte)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sends = append(g.sends, f)
}

func (g *guest) deliver(c Completion) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.full {
		g.done <- c
	}
	return !g.full
}

func (g *guest) expect(id uint64, status verbs.WCStatus, recv bool) Completion {
	g.n.t.Helper()
	select {
	case c := <-g.done:
		if c.WrId != id || verbs.WCStatus(c.Status) != status || c.Recv != recv || c.Owner != any(g) {
			g.n.t.Fatalf("completion of %d: %v, receive %v of %v; want %d: %v, receive %v", c.WrId, verbs.WCStatus(c.Status), c.Recv, c.Owner, id, status, recv)
		}
		return c
	case <-time.After(20 * time.Second):
		g.n.t.Fatalf("no completion %d", id)
		panic(0)
	}
}

// qp makes a QP with rings of 3 requests.
func (g *guest) qp(typ verbs.QPType, change ...func(*QPInit)) *conn {
	g.n.t.Helper()
	cq := must(g.n.dev.CreateCQ(CQInit{Deliver: g.deliver}))(g.n.t)
	return g.n.newQP(typ, append([]func(*QPInit){func(q *QPInit) {
		q.SendCQ, q.RecvCQ, q.Owner, q.Strict = cq, cq, g, true
		q.RefillSend, q.RefillRecv = g.refillSend, g.refillRecv
		q.Cap = verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 3, MaxSendSGE: feedSGE, MaxRecvSGE: 1, MaxInline: feedInline}
	}}, change...)...)
}

func TestDeviceModelsFeedTheirQueues(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newGuest(newNode(t, net, 8192, addrA)), newGuest(newNode(t, net, 8192, addrB))
	var executed []uint64
	x := a.qp(verbs.RC, func(q *QPInit) {
		q.Execute = func(id uint64, _ []byte) verbs.WCStatus {
			executed = append(executed, id) // with the QP locked
			if id == 1000 {
				return verbs.WCMWBindErr
			}
			return verbs.WCSuccess
		}
	})
	y := b.qp(verbs.RC)
	x.connect(y)
	y.connect(x)
	const n = 100
	b.recv(n, b.n.sge(0, 4096))
	for i := range uint64(n) {
		if i%10 == 9 { // 90 SENDs
			a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, _ []byte) {
				w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = i, OpDevice, uint32(verbs.SendSignaled)
			})
			continue
		}
		a.send(i, verbs.SendSignaled, a.n.sge(0, 64))
	}
	if err := x.Doorbell(); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(n) {
		a.expect(i, verbs.WCSuccess, false)
	}
	for i := range uint64(90) {
		if c := b.expect(i, verbs.WCSuccess, true); c.Src != addrA || c.ByteLen != 64 {
			t.Fatalf("%d bytes from %v", c.ByteLen, c.Src)
		}
	}
	if want := []uint64{9, 19, 29, 39, 49, 59, 69, 79, 89, 99}; !slices.Equal(executed, want) {
		t.Errorf("executed %v", executed)
	}

	// Inline data that fills the largest WQE.
	fill(b.n.mem[:feedInline], 0)
	a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, inline []byte) {
		w.Wr.Opcode, w.Wr.SendFlags = abi.IB_UVERBS_WR_SEND, uint32(verbs.SendSignaled|sendInline)
		w.Dma.Length = uint32(len(inline[:feedInline]))
		fill(inline, 7)
	})
	x.Doorbell()
	a.expect(0, verbs.WCSuccess, false)
	b.expect(90, verbs.WCSuccess, true)
	want := make([]byte, feedInline)
	if fill(want, 7); !slices.Equal(b.n.mem[:feedInline], want) {
		t.Error("inline data differ")
	}

	// A failure, and everything behind it, which the rings do not hold. Then what comes later.
	for i := range uint64(20) {
		a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, _ []byte) { w.Wr.WrId, w.Wr.Opcode = 1000+i, OpDevice })
	}
	x.Doorbell()
	a.expect(1000, verbs.WCMWBindErr, false)
	for i := range uint64(19) {
		a.expect(1001+i, verbs.WCFlushErr, false)
	}
	a.send(7, 0, a.n.sge(0, 8))
	a.recv(5, a.n.sge(0, 8))
	x.Doorbell()
	a.expect(7, verbs.WCFlushErr, false)
	for i := range uint64(5) {
		a.expect(i, verbs.WCFlushErr, true)
	}
}

func TestOpDeviceIsForDeviceModels(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	x, _ := pair(n, n, verbs.RC)
	x.post(verbs.SendWR{ID: 1, Opcode: OpDevice + 1})
	n.cq.expect(t, 1, verbs.WCLocQPOpErr)
}

func TestNoRoomToDeliverEndsTheQP(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	a, b := newGuest(n), newGuest(n)
	x, y := a.qp(verbs.RC), b.qp(verbs.RC)
	x.connect(y)
	y.connect(x)
	b.full = true
	b.recv(1, n.sge(0, 8))
	a.send(1, 0, n.sge(0, 8))
	x.Doorbell()
	if s := y.Query().State; s != verbs.StateErr {
		t.Errorf("state %v", s)
	}
}

func TestStrictStatuses(t *testing.T) {
	long := func(n *node) verbs.SGE { return n.sge(0, 128) }
	bad := func(n *node) verbs.SGE { return verbs.SGE{Addr: n.addr(0), Length: 64, LKey: n.mr.LKey() ^ 1} }
	good := func(n *node) verbs.SGE { return n.sge(0, 64) }
	for _, tt := range []struct {
		name       string
		typ        verbs.QPType
		send, recv func(*node) verbs.SGE
		local      verbs.WCStatus
		remote     verbs.WCStatus
	}{
		{"too long", verbs.RC, long, good, verbs.WCRemInvReqErr, verbs.WCLocLenErr},
		{"too long", verbs.UC, long, good, verbs.WCSuccess, verbs.WCLocLenErr},
		{"key of a SEND", verbs.RC, bad, good, verbs.WCLocProtErr, verbs.WCSuccess},
		{"key of a receive", verbs.RC, good, bad, verbs.WCRemOpErr, verbs.WCLocProtErr},
		{"key of a receive", verbs.UC, good, bad, verbs.WCSuccess, verbs.WCLocProtErr},
	} {
		t.Run(tt.typ.String()+" "+tt.name, func(t *testing.T) {
			n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
			a, b := newGuest(n), newGuest(n)
			x, y := a.qp(tt.typ), b.qp(tt.typ)
			x.connect(y)
			y.connect(x)
			b.recv(1, tt.recv(n))
			a.send(1, verbs.SendSignaled, tt.send(n))
			x.Doorbell()
			a.expect(1, tt.local, false)
			if tt.remote != verbs.WCSuccess {
				b.expect(0, tt.remote, true)
			}
		})
	}
	t.Run("datagram longer than the MTU", func(t *testing.T) {
		n := newNode(t, newTestNetwork(1, faults{}), 8192, addrA)
		a := newGuest(n)
		x := a.qp(verbs.UD)
		x.connect(x)
		gid, _ := n.dev.GID(0)
		ah := must(n.pd.CreateAH(verbs.AddressVector{Global: true, Port: 1, DGID: gid}))(t)
		a.add(func(w *abi.RxeSendWqe, sges []abi.RxeSge, _ []byte) {
			w.Wr.Opcode = abi.IB_UVERBS_WR_SEND
			w.Wr.Wr.Ud().AhNum = ah.Num()
			s := n.sge(0, 4097)
			sges[0] = abi.RxeSge{Addr: s.Addr, Length: s.Length, Lkey: s.LKey}
			w.Dma.NumSge, w.Dma.Length = 1, s.Length
		})
		x.Doorbell()
		a.expect(0, verbs.WCLocLenErr, false)
	})
}

func TestFedSRQCountsWhatTheGuestHas(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	a, b := newGuest(n), newGuest(n)
	limits := make(chan int, 8)
	srq := must(n.pd.CreateSRQ(SRQInit{MaxWR: 15, MaxSGE: 1, Refill: b.refillRecv, Event: func(verbs.AsyncEventType) { limits <- len(b.done) }}))(t)
	x, y := a.qp(verbs.RC), b.qp(verbs.RC, func(q *QPInit) { q.SRQ, q.RefillRecv = srq, nil })
	x.connect(y)
	y.connect(x)
	b.recv(2, n.sge(0, 64))
	a.send(0, 0, n.sge(0, 8))
	x.Doorbell()
	b.expect(0, verbs.WCSuccess, true)
	if err := srq.SetLimit(4); err != nil {
		t.Fatal(err)
	}
	b.recv(5, n.sge(0, 64)) // 6 are left, of which the engine knows 1
	for i := range uint64(3) {
		a.send(0, 0, n.sge(0, 8))
		x.Doorbell()
		b.expect(i+1, verbs.WCSuccess, true)
		if got, want := len(limits), int(i/2); got != want {
			t.Errorf("%d events after %d receives", got, i+1)
		}
	}
}

// TestRereg changes the rights and the PD of a region. Memory that was registered to be read alone stays so, as a kernel
// has mapped its pages that way.
func TestRereg(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	const read, write = verbs.AccessRemoteRead, verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	for i, tt := range []struct {
		was, to verbs.Access
		want    error
	}{
		{write, read, nil},
		{write, write | read, nil},
		{read, 0, nil},
		{read, write, syscall.EACCES},
		{write, verbs.AccessHugeTLB, syscall.EOPNOTSUPP},
	} {
		first, other := must(n.dev.AllocPD())(t), must(n.dev.AllocPD())(t)
		mr := must(first.RegisterKey(uint32(i+1)<<8, alignedBytes(4096), 0, tt.was))(t)
		if err := mr.Rereg(nil, &tt.to); !errors.Is(err, tt.want) {
			t.Errorf("%v to %v: %v, want %v", tt.was, tt.to, err, tt.want)
		}
		if want := map[bool]verbs.Access{true: tt.to, false: tt.was}[tt.want == nil]; mr.access != want {
			t.Errorf("%v to %v: has %v", tt.was, tt.to, mr.access)
		}
		if err := errors.Join(mr.Rereg(other, nil), first.Destroy()); err != nil || mr.pd != other {
			t.Errorf("to another PD: %v", err)
		}
		if err := other.Destroy(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a PD of a region: %v", err)
		}
		if err := errors.Join(mr.Destroy(), other.Destroy()); err != nil {
			t.Error(err)
		}
		if err := mr.Rereg(n.pd, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a region that is gone: %v", err)
		}
	}
}

func TestRegisterKey(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newNode(t, net, 4096, addrA), newNode(t, net, 64, addrB)
	mem := alignedBytes(4096)
	mr := must(b.pd.RegisterKey(0x1234_56, mem, 1<<40, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))(t)
	if mr.RKey() != 0x1234_56 {
		t.Errorf("key %#x", mr.RKey())
	}
	for _, tt := range []struct {
		name string
		key  uint32
		iova uint64
		acc  verbs.Access
		want error
	}{
		{"index in use", 0x1234_00, 0, 0, syscall.ENOMEM}, // as a QP number
		{"of a window", 1 << 31, 0, 0, syscall.EINVAL},
		{"wraps around", 0x100, 1<<64 - 4095, 0, syscall.EINVAL},
		{"access", 0x100, 0, verbs.AccessHugeTLB, syscall.EINVAL},
	} {
		if _, err := b.pd.RegisterKey(tt.key, mem, tt.iova, tt.acc); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	x, _ := pair(a, b, verbs.RC)
	fill(a.mem, 3)
	x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 4096)}, RemoteAddr: 1 << 40, RKey: mr.RKey()})
	a.cq.expect(t, 1, verbs.WCSuccess)
	if !slices.Equal(mem, a.mem) {
		t.Error("contents differ")
	}
	if err := mr.Destroy(); err != nil {
		t.Fatal(err)
	}
	must(b.pd.RegisterKey(0x1234_57, mem, 0, 0))(t)
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: 1 << 40, RKey: mr.RKey()})
	a.cq.expect(t, 2, verbs.WCRemAccessErr)
}

func TestSetGID(t *testing.T) {
	net := newTestNetwork(1, faults{})
	if _, err := New(Config{Name: "none", Network: net, NodeGUID: verbs.GUID{2}}); err == nil {
		t.Error("a device without addresses and MTU")
	}
	d := must(New(Config{Name: "late", Network: net, NodeGUID: verbs.GUID{2}, MTU: 5}))(t)
	t.Cleanup(func() { d.Close() })
	if list := d.GIDs(); len(list) != 0 {
		t.Errorf("GIDs %v", list)
	}
	other := netip.MustParseAddr("10.0.0.3")
	set := func(i int, a netip.Addr) {
		t.Helper()
		if err := d.SetGID(i, a); err != nil {
			t.Fatal(err)
		}
	}
	set(3, addrB)
	set(5, addrB) // an address may have several entries
	set(1, other)
	set(1, other)
	for i, want := range map[int]netip.Addr{0: {}, 1: other, 2: {}, 3: addrB, 4: {}, 5: addrB, 6: {}} {
		if g, ok := d.GID(i); ok != want.IsValid() || ok && g.Addr() != want {
			t.Errorf("GID %d is %v", i, g)
		}
	}
	if list := d.GIDs(); len(list) != 3 || list[1].Index != 3 {
		t.Errorf("GIDs %v", list)
	}
	if _, err := d.newPath(verbs.AddressVector{Global: true, Port: 1, SGIDIndex: 2}); !errors.Is(err, host.ENODATA) {
		t.Errorf("a path from an empty entry: %v", err)
	}
	for _, i := range []int{-1, gidTableLen} {
		if err := d.SetGID(i, addrB); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("GID %d: %v", i, err)
		}
	}
	set(3, netip.Addr{}) // leaves entry 5 and its port

	a := newNode(t, net, 4096, addrA)
	b := &node{t: t, dev: d, pd: must(d.AllocPD())(t), mem: alignedBytes(4096)}
	b.cq, b.rcq = b.newCQ(16), b.newCQ(16)
	b.mr = b.register(b.mem, verbs.AccessAll)
	x, y := a.newQP(verbs.RC), b.newQP(verbs.RC)
	y.connect(x, func(q *verbs.QPAttr) { q.AV.SGIDIndex = 5 })
	to := verbs.GID(addrB.As16())
	x.connectTo(func() *verbs.QPAttr {
		q := &verbs.QPAttr{}
		*q = *y.attrs(x)
		q.AV.DGID, q.DestQPNum, q.Timeout, q.RetryCount = to, y.Num(), 1, 1
		return q
	}())
	x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 4096)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()})
	a.cq.expect(t, 1, verbs.WCSuccess)

	set(5, netip.Addr{}) // the last one: its port is closed
	net.mu.Lock()
	open := len(net.ports)
	net.mu.Unlock()
	if open != 2 { // addrA and other
		t.Errorf("%d ports are open", open)
	}
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()})
	a.cq.expect(t, 2, verbs.WCRetryExcErr)
	d.Remove()
	if err := d.SetGID(0, addrB); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("SetGID after Remove: %v", err)
	}
}

func TestQP1OfADeviceModel(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, soft := newGuest(newNode(t, net, 4096, addrA)), newNode(t, net, 64, addrB)
	one := func(q *QPInit) { q.Num = 1 }
	gsi := a.qp(verbs.UD, one)
	if gsi.Num() != 1 {
		t.Fatalf("QP %d", gsi.Num())
	}
	for _, init := range []QPInit{{Type: verbs.UD, Num: 1 << 24}, {Type: verbs.RC, Num: 1}, {Type: verbs.UD, Num: 1}} {
		init.SendCQ, init.RecvCQ = a.n.cq.CQ, a.n.rcq.CQ
		if _, err := a.n.pd.CreateQP(init); err == nil {
			t.Errorf("QP %d of type %v is made", init.Num, init.Type)
		}
	}
	gsi.connect(gsi, func(q *verbs.QPAttr) { q.QKey = roce.GSIQKey })
	mads := make(chan *MAD, 1)
	soft.dev.OnMAD(func(m *MAD) { mads <- m })
	a.recv(1, a.n.sge(0, 512))
	if err := soft.dev.SendMAD(0, addrA, 0, make([]byte, 256)); err != nil {
		t.Fatal(err)
	}
	if c := a.expect(0, verbs.WCSuccess, true); c.SrcQp != 1 || c.ByteLen != 256+verbs.GRHSize || c.Src != addrB {
		t.Errorf("%d bytes from QP %d at %v", c.ByteLen, c.SrcQp, c.Src)
	}
	ah := must(a.n.pd.CreateAH(verbs.AddressVector{Global: true, Port: 1, DGID: verbs.GID(addrB.As16()), TrafficClass: 0x20}))(t)
	a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, inline []byte) {
		w.Wr.Opcode, w.Wr.SendFlags = abi.IB_UVERBS_WR_SEND, sendInline
		w.Dma.Length = uint32(copy(inline, "a datagram"))
		*w.Wr.Wr.Ud() = abi.RxeSendWrWrUd{RemoteQpn: 1, RemoteQkey: roce.GSIQKey, AhNum: ah.Num()}
	})
	gsi.Doorbell()
	select {
	case m := <-mads:
		if string(m.Data) != "a datagram" || m.Src != addrA || m.SrcQP != 1 {
			t.Errorf("%q from QP %d at %v", m.Data, m.SrcQP, m.Src)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no datagram")
	}
}

// TestRegionsOfParts accesses a region whose parts are 100, 4000 and 3 bytes of two others: as a
// source and a destination, locally and by peers.
func TestRegionsOfParts(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64<<10, addrA)
	x, y := pair(n, n, verbs.RC)
	other := n.register(n.mem[32<<10:], verbs.AccessAll)
	readOnly := n.register(n.mem[40<<10:][:4096], verbs.AccessRemoteRead)
	const key = 1<<8 | 7
	parts := func(middle uint32) []Part {
		return []Part{
			{Key: n.mr.LKey(), Addr: n.addr(16<<10 + 1), Length: 100}, {Key: middle, Addr: n.addr(40 << 10), Length: 4000},
			{Key: n.mr.LKey(), Addr: n.addr(20 << 10), Length: 3},
		}
	}
	const iova, total = 1<<40 + 5, 4103
	list := must(n.pd.RegisterParts(key, parts(other.LKey()), iova, verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessLocalWrite, 0))(t)
	content := func() (b []byte) {
		b = append(b, n.mem[16<<10+1:][:100]...)
		b = append(b, n.mem[40<<10:][:4000]...)
		return append(b, n.mem[20<<10:][:3]...)
	}
	fill(n.mem[:total], 1)
	want := slices.Clone(n.mem[:total])
	x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{n.sge(0, total)}, RemoteAddr: iova, RKey: key})
	n.cq.expect(t, 1, verbs.WCSuccess)
	if !slices.Equal(content(), want) {
		t.Error("WRITE: contents differ")
	}
	clear(n.mem[:total])
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{n.sge(0, total)}, RemoteAddr: iova, RKey: key})
	n.cq.expect(t, 2, verbs.WCSuccess)
	if !slices.Equal(n.mem[:total], want) {
		t.Error("READ: contents differ")
	}
	// Source and destination of a SEND are the same bytes, shifted by one.
	y.postRecv(3, verbs.SGE{Addr: iova + 1, Length: total - 1, LKey: key})
	x.post(verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: iova, Length: 1500, LKey: key}}})
	n.cq.expect(t, 3, verbs.WCSuccess)
	n.rcq.expect(t, 3, verbs.WCSuccess)
	if got := content(); got[1] != want[0] || got[1501] != want[1501] {
		t.Error("SEND: contents differ")
	}
	list.Destroy()
	for _, tt := range []struct {
		name string
		mr   func() *MR
		addr uint64
		op   verbs.Opcode
		size uint32
		want verbs.WCStatus
	}{
		{"beyond the end", func() *MR {
			return must(n.pd.RegisterParts(key, parts(other.LKey()), iova, verbs.AccessAll, 0))(t)
		}, iova + 1, verbs.OpRDMARead, total, verbs.WCRemAccessErr},
		{"a part that may not be written", func() *MR {
			return must(n.pd.RegisterParts(key, parts(readOnly.LKey()), iova, verbs.AccessAll, 0))(t)
		}, iova + 50, verbs.OpRDMAWrite, 100, verbs.WCRemAccessErr},
		{"a part that may be read", func() *MR {
			return must(n.pd.RegisterParts(key, parts(readOnly.LKey()), iova, verbs.AccessAll, 0))(t)
		}, iova + 50, verbs.OpRDMARead, 100, verbs.WCSuccess},
		{"a part that does not exist", func() *MR {
			return must(n.pd.RegisterParts(key, parts(1<<30), iova, verbs.AccessAll, 0))(t)
		}, iova + 50, verbs.OpRDMARead, 100, verbs.WCRemAccessErr},
		{"a part of itself", func() *MR {
			return must(n.pd.RegisterParts(key, parts(key), iova, verbs.AccessAll, 0))(t)
		}, iova + 50, verbs.OpRDMARead, 100, verbs.WCRemAccessErr},
		{"rights of the region itself", func() *MR {
			return must(n.pd.RegisterParts(key, parts(other.LKey()), iova, verbs.AccessRemoteRead, 0))(t)
		}, iova, verbs.OpRDMAWrite, 8, verbs.WCRemAccessErr},
		{"of another QP", func() *MR {
			return must(n.pd.RegisterParts(key, parts(other.LKey()), iova, verbs.AccessAll, 99))(t)
		}, iova, verbs.OpRDMARead, 8, verbs.WCRemAccessErr},
	} {
		x, y := pair(n, n, verbs.RC)
		mr := tt.mr()
		x.post(verbs.SendWR{ID: 9, Opcode: tt.op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{n.sge(0, int(tt.size))}, RemoteAddr: tt.addr, RKey: key})
		if wc := n.cq.next(t); wc.Status != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, wc.Status, tt.want)
		}
		mr.Destroy()
		x.Destroy()
		y.Destroy()
	}
}

// TestKeyOfAnotherRegion has a region end and another one begin with its key, which QPs must not
// take for the one that they have used.
func TestKeyOfAnotherRegion(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, _ := pair(n, n, verbs.RC)
	const key = 1<<8 | 7
	for i := range uint64(3) {
		mr := must(n.pd.RegisterKey(key, n.mem[i*64:][:64], 0, verbs.AccessAll))(t)
		n.mem[3000] = byte(i + 1)
		x.post(verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{n.sge(3000, 1)}, RKey: key})
		n.cq.expect(t, i, verbs.WCSuccess)
		x.post(verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: 1, LKey: key}}, RemoteAddr: n.addr(3001), RKey: n.mr.RKey()})
		n.cq.expect(t, i, verbs.WCSuccess)
		if n.mem[i*64] != byte(i+1) || n.mem[3001] != byte(i+1) {
			t.Errorf("region %d has %d, the copy is %d", i, n.mem[i*64], n.mem[3001])
		}
		if err := mr.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLocalRequestsInARow posts requests that need no packets and wait for those before them.
func TestLocalRequestsInARow(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	a := newGuest(n)
	x := a.qp(verbs.RC, func(q *QPInit) { q.Execute = func(uint64, []byte) verbs.WCStatus { return verbs.WCSuccess } })
	x.connect(x)
	for i := range uint64(10) {
		a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, _ []byte) {
			w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = i, OpDevice, uint32(verbs.SendSignaled)
		})
	}
	x.Doorbell()
	for i := range uint64(10) {
		a.expect(i, verbs.WCSuccess, false)
	}
}

// TestManyRequestsAtOnce sends more requests by one doorbell than a ring holds, of the types whose
// requests wait for no answer.
func TestManyRequestsAtOnce(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			const n = 200
			a := newGuest(newNode(t, newTestNetwork(1, faults{}), 8192, addrA))
			x, y := a.qp(typ), newGuest(a.n).qp(typ)
			x.connect(y)
			y.connect(x)
			ah := must(a.n.pd.CreateAH(verbs.AddressVector{Global: true, Port: 1, DGID: verbs.GID(addrA.As16())}))(t)
			for i := range uint64(n) {
				a.add(func(w *abi.RxeSendWqe, _ []abi.RxeSge, _ []byte) {
					w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = i, abi.IB_UVERBS_WR_SEND, uint32(verbs.SendSignaled)
					if typ == verbs.UD {
						*w.Wr.Wr.Ud() = abi.RxeSendWrWrUd{RemoteQpn: y.Num(), RemoteQkey: testQKey, AhNum: ah.Num()}
					}
				})
			}
			if err := x.Doorbell(); err != nil {
				t.Fatal(err)
			}
			for i := range uint64(n) {
				a.expect(i, verbs.WCSuccess, false)
			}
		})
	}
}

func TestInvalidateInARow(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, _ := pair(n, n, verbs.RC)
	var wrs []verbs.SendWR
	for range 3 {
		mw := must(n.pd.AllocMW(verbs.MWType2))(t)
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{
			RKey: mw.RKey(), NewRKey: mw.RKey(), LKey: n.mr.LKey(), Addr: n.addr(0), Length: 8, Access: verbs.AccessRemoteRead}}})
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
	}
	wrs[1], wrs[2], wrs[3], wrs[4] = wrs[2], wrs[4], wrs[1], wrs[3] // all are bound first
	for i := range wrs {
		wrs[i].ID = uint64(i)
	}
	x.post(wrs...)
	for i := range wrs {
		n.cq.expect(t, uint64(i), verbs.WCSuccess)
	}
}

// TestSendQueueError fails requests of QPs that have nothing to acknowledge: they go on to receive,
// and send again after RTS.
func TestSendQueueError(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
			a, b := newGuest(n), newGuest(n)
			x, y := a.qp(typ), b.qp(typ)
			x.connect(y)
			y.connect(x)
			gid, _ := n.dev.GID(0)
			ah := must(n.pd.CreateAH(verbs.AddressVector{Global: true, Port: 1, DGID: gid}))(t)
			send := func(g *guest, q, to *conn, id uint64, key uint32) {
				g.add(func(w *abi.RxeSendWqe, sges []abi.RxeSge, _ []byte) {
					w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = id, abi.IB_UVERBS_WR_SEND, uint32(verbs.SendSignaled)
					if typ == verbs.UD {
						*w.Wr.Wr.Ud() = abi.RxeSendWrWrUd{RemoteQpn: to.Num(), RemoteQkey: to.Query().QKey, AhNum: ah.Num()}
					}
					sges[0] = abi.RxeSge{Addr: n.addr(0), Length: 8, Lkey: key}
					w.Dma.NumSge, w.Dma.Length = 1, 8
				})
				q.Doorbell()
			}
			a.recv(2, n.sge(64, 64))
			b.recv(1, n.sge(64, 64))
			send(a, x, y, 1, n.mr.LKey()^1)
			a.expect(1, verbs.WCLocProtErr, false)
			if s := x.Query().State; s != verbs.StateSQE {
				t.Fatalf("state %v", s)
			}
			send(a, x, y, 2, n.mr.LKey())
			a.expect(2, verbs.WCFlushErr, false)
			send(b, y, x, 3, n.mr.LKey())
			b.expect(3, verbs.WCSuccess, false)
			a.expect(0, verbs.WCSuccess, true)
			if err := x.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState); err != nil {
				t.Fatal(err)
			}
			send(a, x, y, 4, n.mr.LKey())
			a.expect(4, verbs.WCSuccess, false)
			b.expect(0, verbs.WCSuccess, true)
			x.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
			a.expect(1, verbs.WCFlushErr, true)
		})
	}
}

package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
)

// bind returns a request that binds a window.
func bind(mw *MW, mr *MR, addr, length uint64, access verbs.Access) verbs.SendWR {
	return verbs.SendWR{ID: 1, Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{
		RKey: mw.RKey(), NewRKey: verbs.NextRKey(mw.RKey()), LKey: mr.LKey(), Addr: addr, Length: length, Access: access,
	}}}
}

// TestWindows binds, uses and invalidates memory windows.
func TestWindows(t *testing.T) {
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		eachPair(t, 4096, func(t *testing.T, a, b *node) {
			x, y := pair(a, b, verbs.RC)
			mw := must(b.pd.AllocMW(typ))(t)
			old := mw.RKey()
			write := func(off int, key uint32, status verbs.WCStatus) {
				t.Helper()
				x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(off), RKey: key})
				a.cq.expect(t, 2, status)
				if status != verbs.WCSuccess {
					x, y = pair(a, b, verbs.RC)
				}
			}
			y.post(bind(mw, b.mr, b.addr(100), 50, verbs.AccessRemoteWrite))
			if wc := b.cq.expect(t, 1, verbs.WCSuccess); wc.Opcode != verbs.WCBindMW {
				t.Errorf("opcode %v", wc.Opcode)
			}
			key := mw.RKey()
			if key != verbs.NextRKey(old) {
				t.Errorf("key %#x after %#x", key, old)
			}
			write(100, key, verbs.WCSuccess)
			write(142, key, verbs.WCSuccess)
			if err := b.mr.Destroy(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("dereg of a region with a window: %v", err)
			}
			if typ == verbs.MWType2 {
				x.post(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(100), RKey: key})
				a.cq.expect(t, 3, verbs.WCRemAccessErr)
				mw.Destroy()
				return
			}
			write(143, key, verbs.WCRemAccessErr)
			write(99, key, verbs.WCRemAccessErr)
			write(100, old, verbs.WCRemAccessErr)
			// bound again
			y.post(bind(mw, b.mr, b.addr(0), 8, verbs.AccessRemoteWrite))
			b.cq.expect(t, 1, verbs.WCSuccess)
			write(0, mw.RKey(), verbs.WCSuccess)
			write(0, key, verbs.WCRemAccessErr)
			// unbound
			y.post(bind(mw, b.mr, 0, 0, 0))
			b.cq.expect(t, 1, verbs.WCSuccess)
			write(0, mw.RKey(), verbs.WCRemAccessErr)
			if err := mw.Destroy(); err != nil {
				t.Error(err)
			}
			if err := b.mr.Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInvalidate invalidates windows locally and by a peer.
func TestInvalidate(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC)
		mw := must(b.pd.AllocMW(verbs.MWType2))(t)
		y.post(bind(mw, b.mr, b.addr(0), 4096, verbs.AccessRemoteWrite|verbs.AccessZeroBased))
		b.cq.expect(t, 1, verbs.WCSuccess)
		y.postRecv(5)
		x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: 16, RKey: mw.RKey()},
			verbs.SendWR{ID: 3, Opcode: verbs.OpSendInv, RKey: mw.RKey()})
		a.cq.expect(t, 2, verbs.WCSuccess)
		a.cq.expect(t, 3, verbs.WCSuccess)
		if wc := b.rcq.expect(t, 5, verbs.WCSuccess); wc.Flags != verbs.WCGRH|wcWithInvalidate || wc.InvalidatedRKey() != mw.RKey() {
			t.Errorf("completion %+v", wc)
		}
		// A window of type 2 can be bound when it is free, and used by its QP only.
		y.post(bind(mw, b.mr, b.addr(0), 4096, verbs.AccessRemoteWrite))
		b.cq.expect(t, 1, verbs.WCSuccess)
		other, _ := pair(a, b, verbs.RC)
		other.post(verbs.SendWR{ID: 4, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: mw.RKey()})
		a.cq.expect(t, 4, verbs.WCRemAccessErr)
		// Nor can a peer of another QP invalidate it, or that QP itself.
		for _, foreign := range []*PD{b.pd, must(b.dev.AllocPD())(t)} {
			own := b.pd
			b.pd = foreign
			other, to := pair(a, b, verbs.RC)
			local, _ := pair(b, a, verbs.RC)
			b.pd = own
			to.postRecv(8)
			other.post(verbs.SendWR{ID: 9, Opcode: verbs.OpSendInv, RKey: mw.RKey()})
			a.cq.expect(t, 9, verbs.WCSuccess) // as for any key that cannot be invalidated
			b.rcq.expect(t, 8, verbs.WCRemInvReqErr)
			local.post(verbs.SendWR{ID: 10, Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
			b.cq.expect(t, 10, verbs.WCLocQPOpErr)
			x.post(verbs.SendWR{ID: 11, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: mw.RKey()})
			a.cq.expect(t, 11, verbs.WCSuccess)
		}
		y.post(verbs.SendWR{ID: 6, Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
		b.cq.expect(t, 6, verbs.WCSuccess)
		x.post(verbs.SendWR{ID: 7, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: mw.RKey()})
		a.cq.expect(t, 7, verbs.WCRemAccessErr)
	})
}

// TestSRQ shares receives between QPs.
func TestSRQ(t *testing.T) {
	eachPair(t, 8192, func(t *testing.T, a, b *node) {
		var limits int
		srq := must(b.pd.CreateSRQ(SRQInit{MaxWR: 15, MaxSGE: 2, Event: func(e verbs.AsyncEventType) {
			if e == verbs.EventSRQLimitReached {
				limits++
			}
		}}))(t)
		var x, y [2]*conn
		for i := range x {
			x[i], y[i] = a.newQP(verbs.RC), b.newQP(verbs.RC, func(init *QPInit) { init.SRQ = srq })
			x[i].connect(y[i])
			y[i].connect(x[i])
			if y[i].RecvRing() != nil {
				t.Error("QP with SRQ has a receive queue")
			}
		}
		for id := range uint64(6) {
			putRecv(t, srq.Ring(), id, b.sge(int(id)*1000, 1000))
		}
		if err := srq.SetLimit(5); err != nil {
			t.Fatal(err)
		}
		if err := srq.Resize(31); err != nil {
			t.Fatal(err)
		}
		if wr, sge, limit := srq.Query(); wr != 31 || sge != 2 || limit != 5 {
			t.Errorf("query: %d, %d, %d", wr, sge, limit)
		}
		for i := range 4 {
			a.mem[0] = byte(i + 1)
			x[i%2].post(verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 900)}})
			a.cq.expect(t, uint64(i), verbs.WCSuccess)
			if wc := b.rcq.expect(t, uint64(i), verbs.WCSuccess); wc.QPNum != y[i%2].Num() || b.mem[i*1000] != byte(i+1) {
				t.Errorf("completion %+v", wc)
			}
		}
		if _, _, limit := srq.Query(); limits != 1 || limit != 0 {
			t.Errorf("%d events, limit %d", limits, limit)
		}
		if err := srq.Destroy(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("destroy in use: %v", err)
		}
		// Too long for the receive: it completes with an error.
		x[0].post(verbs.SendWR{ID: 9, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 1001)}})
		a.cq.expect(t, 9, verbs.WCRemOpErr)
		b.rcq.expect(t, 4, verbs.WCLocQPOpErr)
		if e := y[0].nextEvent(); e != verbs.EventQPLastWQEReached {
			t.Errorf("event %v", e)
		}
		x[1].post(verbs.SendWR{ID: 10, Opcode: verbs.OpSend})
		a.cq.expect(t, 10, verbs.WCSuccess)
		b.rcq.expect(t, 5, verbs.WCSuccess)
		for _, q := range y {
			if err := q.Destroy(); err != nil {
				t.Error(err)
			}
		}
		if err := srq.Destroy(); err != nil {
			t.Error(err)
		}
	})
}

// TestSRQRefuses sets sizes and limits that an SRQ does not have, and resizes it to the least that it needs.
func TestSRQRefuses(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	srq := must(n.pd.CreateSRQ(SRQInit{MaxWR: 15, MaxSGE: 2}))(t)
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for want, inits := range map[error][]SRQInit{
		nil:            {{MaxWR: 1}, {MaxWR: maxSRQWR, MaxSGE: maxSRQSGE}},
		syscall.EINVAL: {{}, {MaxWR: maxSRQWR + 1}, {MaxWR: 1, MaxSGE: -1}, {MaxWR: 1, MaxSGE: maxSRQSGE + 1}},
	} {
		for _, init := range inits {
			_, err := n.pd.CreateSRQ(init)
			check(fmt.Sprintf("%+v", init), err, want)
		}
	}
	check("resize to nothing", srq.Resize(0), syscall.EINVAL)
	check("resize to the most", srq.Resize(maxSRQWR), nil)
	check("resize to more", srq.Resize(maxSRQWR+1), syscall.EINVAL)
	check("resize to one", srq.Resize(1), nil)
	check("resize", srq.Resize(7), nil)
	check("limit of all", srq.SetLimit(7), nil)
	check("limit of more", srq.SetLimit(8), syscall.EINVAL)
	check("limit below none", srq.SetLimit(-1), syscall.EINVAL)
	check("resize to less than the limit", srq.Resize(6), syscall.EINVAL)
	check("resize to the limit", srq.Resize(7), nil)
	check("no limit", srq.SetLimit(0), nil)
	for id := range uint64(3) {
		putRecv(t, srq.Ring(), id, n.sge(0, 1))
	}
	check("resize to less than there are", srq.Resize(1), syscall.EINVAL)
	check("resize to what there are", srq.Resize(3), nil)
	check("destroy", srq.Destroy(), nil)
	check("limit of a destroyed one", srq.SetLimit(1), syscall.EINVAL)
	check("resize of a destroyed one", srq.Resize(7), syscall.EINVAL)
}

// TestResizeCQ moves completions to another ring.
func TestResizeCQ(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	cq := n.newCQ(8)
	x, y := n.newQP(verbs.RC, func(i *QPInit) { i.SendCQ = cq.CQ }), n.newQP(verbs.RC)
	x.connect(y)
	y.connect(x)
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite}
	for i := range uint64(10) {
		write.ID = i
		x.post(write)
		if i%3 == 0 {
			cq.poll()
		}
	}
	if err := cq.Resize(3); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("resize to less than there are: %v", err)
	}
	if err := cq.Resize(100); err != nil {
		t.Fatal(err)
	}
	if c := cq.Ring().Cap(); c != 127 {
		t.Errorf("capacity %d", c)
	}
	for i := range uint64(50) {
		write.ID = 10 + i
		x.post(write)
	}
	for id := uint64(4); id < 60; id++ {
		cq.expect(t, id, verbs.WCSuccess)
	}
}

// TestArm arms for any and for solicited completions.
func TestArm(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UD} {
		testArm(t, typ)
	}
}

func testArm(t *testing.T, typ verbs.QPType) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, y := pair(n, n.sibling(4096), typ)
	var to verbs.UDAddr
	if typ == verbs.UD {
		ah := must(n.pd.CreateAH(verbs.AddressVector{Global: true, DGID: addrA.As16(), Port: 1}))(t)
		to = verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}
	}
	notified := func() bool {
		select {
		case <-y.n.rcq.wake:
			return true
		default:
			return false
		}
	}
	send := func(flags verbs.SendFlags) {
		y.postRecv(0, y.n.sge(0, 40))
		x.post(verbs.SendWR{Opcode: verbs.OpSend, Flags: flags, To: to})
	}
	send(verbs.SendSolicited)
	if notified() {
		t.Error(typ, "notified without arm")
	}
	y.n.rcq.Arm(true)
	send(0)
	if notified() {
		t.Error(typ, "notified of a completion that is not solicited")
	}
	send(verbs.SendSolicited)
	if !notified() {
		t.Error(typ, "not notified of a solicited completion")
	}
	send(verbs.SendSolicited)
	if notified() {
		t.Error(typ, "notified twice")
	}
	y.n.rcq.Arm(false)
	send(0)
	if !notified() {
		t.Error(typ, "not notified")
	}
	y.n.rcq.Arm(true)
	y.postRecv(0)
	y.mustModify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	if !notified() {
		t.Error(typ, "not notified of a flush")
	}
}

// TestUnsignaled posts requests without completions.
func TestUnsignaled(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, _ := pair(n, n.sibling(4096), verbs.RC)
	for i := range uint64(100) {
		x.put(&verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite})
	}
	x.post(verbs.SendWR{ID: 100, Opcode: verbs.OpRDMAWrite})
	n.cq.expect(t, 100, verbs.WCSuccess)
	y := n.newQP(verbs.RC, func(i *QPInit) { i.SignalAll = true })
	z := n.newQP(verbs.RC)
	y.connect(z)
	z.connect(y)
	y.put(&verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite})
	y.Doorbell()
	n.cq.expect(t, 1, verbs.WCSuccess)
	// Failures always complete.
	x.put(&verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{n.sge(0, 1)}})
	x.put(&verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite})
	x.Doorbell()
	n.cq.expect(t, 2, verbs.WCRemAccessErr)
	n.cq.expect(t, 3, verbs.WCFlushErr)
}

// TestDrain moves a QP to SQD and back while requests are in progress.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newTestNetwork(1, faults{loss: .2})
		a, b := newNode(t, net, 1<<20, addrA), newNode(t, net, 1<<20, addrB)
		x, y := pair(a, b, verbs.RC)
		write := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 200<<10)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()}
		x.post(write)
		x.mustModify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState)
		write.ID = 2
		x.post(write)
		if !x.Query().SQDraining {
			t.Error("not draining")
		}
		if err := x.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("to RTS while draining: %v", err)
		}
		if e := x.nextEvent(); e != verbs.EventSQDrained {
			t.Errorf("event %v", e)
		}
		a.cq.expect(t, 1, verbs.WCSuccess)
		time.Sleep(time.Second)
		if wc, ok := a.cq.poll(); ok {
			t.Errorf("completion in SQD: %+v", wc)
		}
		if x.Query().SQDraining {
			t.Error("draining")
		}
		x.mustModify(&verbs.QPAttr{Timeout: 11, RetryCount: 6}, verbs.MaskTimeout|verbs.MaskRetryCount)
		x.mustModify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState)
		a.cq.expect(t, 2, verbs.WCSuccess)
		// An idle queue is drained at once.
		y.mustModify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState)
		for e := y.nextEvent(); e != verbs.EventSQDrained; e = y.nextEvent() {
			if e != verbs.EventCommEst {
				t.Errorf("event %v", e)
			}
		}
		a.dev.Close()
		b.dev.Close()
	})
}

// TestReset uses a QP again after RESET.
func TestReset(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC)
		for range 3 {
			y.postRecv(1, b.sge(0, 8))
			x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 8)}})
			a.cq.expect(t, 2, verbs.WCSuccess)
			b.rcq.expect(t, 1, verbs.WCSuccess)
			y.postRecv(3, b.sge(0, 8))
			for _, c := range []*conn{x, y} {
				c.mustModify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
			}
			x.connect(y)
			y.connect(x)
		}
		y.mustModify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		y.postRecv(4)
		y.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend})
		b.rcq.expect(t, 4, verbs.WCFlushErr)
		b.cq.expect(t, 5, verbs.WCFlushErr)
	})
}

// TestCommEstablished receives a request before RTS.
func TestCommEstablished(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, y := n.newQP(verbs.RC), n.newQP(verbs.RC)
	x.connect(y)
	y.toRTR(x)
	y.postRecv(1)
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
	n.cq.expect(t, 2, verbs.WCSuccess)
	if e := y.nextEvent(); e != verbs.EventCommEst {
		t.Errorf("event %v", e)
	}
}

// TestMulticast sends to a group with members on both devices.
func TestMulticast(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newNode(t, net, 4096, addrA), newNode(t, net, 4096, addrB)
	group := verbs.GID(netip.MustParseAddr("::ffff:239.1.2.3").As16())
	x, y := a.newQP(verbs.UD), b.newQP(verbs.UD)
	z := a.newQP(verbs.UD, func(i *QPInit) { i.RecvCQ = a.newCQ(10).CQ })
	zcq := &testCQ{CQ: z.init.RecvCQ, wake: make(chan struct{}, 1)}
	for _, q := range []*conn{x, y, z} {
		q.connect(q)
		q.postRecv(1, q.n.sge(0, 100))
	}
	for _, q := range []*conn{y, z} {
		for range 2 {
			if err := q.AttachMulticast(group); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := z.AttachMulticast(verbs.GID(addrA.As16())); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attach to a unicast address: %v", err)
	}
	if err := y.Destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroy while attached: %v", err)
	}
	ah := must(a.pd.CreateAH(verbs.AddressVector{Global: true, DGID: group, Port: 1}))(t)
	send := verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(200, 8)}, To: verbs.UDAddr{AH: ah.Num(), QPNum: multicastQPN, QKey: testQKey}}
	copy(a.mem[200:], "to group")
	x.post(send)
	a.cq.expect(t, 2, verbs.WCSuccess)
	b.rcq.expect(t, 1, verbs.WCSuccess)
	zcq.expect(t, 1, verbs.WCSuccess)
	if !bytes.Equal(b.mem[40:48], a.mem[200:208]) {
		t.Error("wrong data")
	}
	for _, q := range []*conn{y, z} {
		if err := q.DetachMulticast(group); err != nil {
			t.Error(err)
		}
		if err := q.DetachMulticast(group); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("detach again: %v", err)
		}
		if err := q.Destroy(); err != nil {
			t.Error(err)
		}
	}
}

// TestMADs sends datagrams between QPs 1.
func TestMADs(t *testing.T) {
	eachPair(t, 64, func(t *testing.T, a, b *node) {
		got := make(chan MAD, 10)
		b.dev.OnMAD(func(m *MAD) {
			c := *m
			c.Data = bytes.Clone(m.Data)
			got <- c
			if len(m.Data) == 256 { // the engine may be called
				b.dev.SendMAD(m.GIDIndex, m.Src, 0, []byte("answer"))
			}
		})
		answers := got
		if a.dev != b.dev {
			answers = make(chan MAD, 10)
			a.dev.OnMAD(func(m *MAD) { answers <- MAD{Src: m.Src, Data: bytes.Clone(m.Data)} })
		}
		data := make([]byte, 256)
		fill(data, 3)
		dst, _ := b.dev.GID(0)
		if err := a.dev.SendMAD(0, dst.Addr(), 0, data); err != nil {
			t.Fatal(err)
		}
		src, _ := a.dev.GID(0)
		if m := <-got; !bytes.Equal(m.Data, data) || m.Src != src.Addr() || m.SrcQP != 1 || m.GIDIndex != 0 {
			t.Errorf("received %+v", m)
		}
		if m := <-answers; string(m.Data) != "answer" || m.Src != dst.Addr() {
			t.Errorf("answer %+v", m)
		}
		for _, tt := range []struct {
			gid  int
			dst  netip.Addr
			size int
		}{{1, addrB, 1}, {-1, addrB, 1}, {0, netip.MustParseAddr("fe80::1"), 1}, {0, addrB, 257}} {
			if err := a.dev.SendMAD(tt.gid, tt.dst, 0, make([]byte, tt.size)); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v: %v", tt, err)
			}
		}
	})
}

// TestMADQueue sends more datagrams than wait for the handler: those that are dropped are counted.
func TestMADQueue(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	first, proceed, handled := make(chan struct{}), make(chan struct{}), 0
	n.dev.OnMAD(func(*MAD) {
		if handled++; handled == 1 {
			close(first)
			<-proceed
		}
	})
	self, _ := n.dev.GID(0)
	send := func() {
		if err := n.dev.SendMAD(0, self.Addr(), 0, make([]byte, 256)); err != nil {
			t.Fatal(err)
		}
	}
	send()
	<-first
	defer close(proceed)
	for range madQueue + 10 {
		send()
	}
	if c := n.counter("out_of_buffer"); c != 10 {
		t.Errorf("%d datagrams are counted as dropped, want 10", c)
	}
}

// droppingPort is a port that drops all packets, and says so.
type droppingPort struct {
	netif.Port
	dropped func(sent, received int)
}

func (p *droppingPort) OnDrop(dropped func(sent, received int)) { p.dropped = dropped }

func (p *droppingPort) Send(pkts []netif.Packet) error {
	p.dropped(len(pkts), 0)
	return syscall.ENOBUFS
}

// droppingNetwork is a network of such ports.
type droppingNetwork struct {
	*testNetwork
	port droppingPort
}

func (n *droppingNetwork) Open(addr netip.AddrPort) (netif.Port, error) {
	p, err := n.testNetwork.Open(addr)
	n.port.Port = p
	return &n.port, err
}

// TestDrops counts what a port drops: each packet, not each call.
func TestDrops(t *testing.T) {
	net := &droppingNetwork{testNetwork: newTestNetwork(1, faults{})}
	dev := must(New(Config{Name: "soft0", Network: net, Addrs: []netip.Addr{addrA}}))(t)
	t.Cleanup(func() { dev.Close() })
	dev.gids.at(0).send(dev, make([]netif.Packet, 3))
	net.port.dropped(0, 2)
	n := &node{t: t, dev: dev}
	if sent, received := n.counter("send_err"), n.counter("rx_drops"); sent != 3 || received != 2 {
		t.Errorf("%d sent and %d received packets are counted as dropped, want 3 and 2", sent, received)
	}
}

// TestUCLoss drops packets: messages arrive whole or not at all.
func TestUCLoss(t *testing.T) { synctest.Test(t, testUCLoss) }

func testUCLoss(t *testing.T) {
	net := newTestNetwork(3, faults{})
	a, b := newNode(t, net, 64<<10, addrA), newNode(t, net, 64<<10, addrB)
	x, y := pair(a, b, verbs.UC)
	net.set(faults{loss: .1, dup: .05, reorder: .05})
	const size = 3000
	for i := range uint64(200) {
		y.postRecv(i, b.sge(int(i%16)*4096, 4096))
		binary.BigEndian.PutUint64(a.mem, i)
		for off := 8; off < size; off++ {
			a.mem[off] = byte(i)
		}
		x.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, size)}})
		a.cq.expect(t, i, verbs.WCSuccess)
	}
	net.set(faults{})
	synctest.Wait()
	arrived := uint64(0)
	for ; ; arrived++ {
		wc, ok := b.rcq.poll()
		if !ok {
			break
		}
		mem := b.mem[int(wc.ID%16)*4096:][:size]
		if wc.ID != arrived || wc.Status != verbs.WCSuccess || wc.ByteLen != size {
			t.Fatalf("completion %+v", wc)
		}
		if n := mem[8]; arrived > 184 && !bytes.Equal(mem[8:], bytes.Repeat([]byte{n}, size-8)) {
			t.Errorf("message %d is mixed", n)
		}
	}
	if arrived == 0 || arrived == 200 {
		t.Errorf("%d of 200 messages have arrived", arrived)
	}
}

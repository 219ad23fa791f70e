//go:build linux

package engine

import (
	"bytes"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

const (
	pagedKey   = 0x4321_00
	pagedStart = 1 << 32
	pagedSize  = 16 * probeStep
)

// pager is a node with a region whose pages are missing until somebody answers the faults of its QP.
type pager struct {
	*node
	paged  []byte
	faults atomic.Int32
}

func newPager(t *testing.T, n *node) *pager {
	mem := must(unix.Mmap(-1, 0, pagedSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { unix.Munmap(mem) })
	must(n.pd.RegisterKey(pagedKey, mem, pagedStart, verbs.AccessAll))(t).Paged()
	return &pager{node: n, paged: mem}
}

// answer is QPInit.PageFault.
func (p *pager) answer(f PageFault) {
	p.faults.Add(1)
	go func() { // the QP is locked
		p.show()
		p.dev.Resume(f.QP, f.Requester, true)
	}()
}

func (p *pager) show() { unix.Mprotect(p.paged, unix.PROT_READ|unix.PROT_WRITE) }
func (p *pager) hide() { unix.Mprotect(p.paged, unix.PROT_NONE) }

func pagedSGE(off, n int) verbs.SGE {
	return verbs.SGE{Addr: pagedStart + uint64(off), Length: uint32(n), LKey: pagedKey}
}

// TestPaging moves messages on a network that loses packets, while the memory of one side or both is
// taken before each. Receives are used once, also those of an SRQ, which leave it before the memory is
// found missing.
func TestPaging(t *testing.T) {
	const n = pagedSize - 300
	for _, shared := range []bool{false, true} {
		net := newTestNetwork(7, faults{loss: 0.02})
		a, b := newPager(t, newNode(t, net, 4096, addrA)), newPager(t, newNode(t, net, 4096, addrB))
		srq := must(b.pd.CreateSRQ(SRQInit{MaxWR: 64, MaxSGE: 2}))(t)
		x := a.newQP(verbs.RC, func(i *QPInit) { i.PageFault = a.answer })
		y := b.newQP(verbs.RC, func(i *QPInit) {
			i.PageFault = b.answer
			if shared {
				i.SRQ = srq
			}
		})
		x.connect(y)
		y.connect(x)
		ring := srq.Ring()
		if !shared {
			ring = y.RecvRing()
		}
		for id := range uint64(60) {
			op := []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteImm}[id%4]
			a.show()
			b.show()
			fill(a.paged, int(id))
			fill(b.paged, int(id)+1)
			want, got := bytes.Clone(a.paged[:n]), b.paged[100:][:n]
			if op == verbs.OpRDMARead {
				want, got = bytes.Clone(b.paged[100:][:n]), a.paged[:n]
			}
			if id/4%3 != 0 {
				a.hide()
			}
			if id/4%3 != 1 {
				b.hide()
			}
			if op == verbs.OpSend || op == verbs.OpRDMAWriteImm {
				putRecv(t, ring, id, pagedSGE(100, 1000), pagedSGE(1100, n-1000))
			}
			x.post(verbs.SendWR{ID: id, Opcode: op, SGL: []verbs.SGE{pagedSGE(0, n)}, RemoteAddr: pagedStart + 100, RKey: pagedKey})
			a.cq.expect(t, id, verbs.WCSuccess)
			if op == verbs.OpSend || op == verbs.OpRDMAWriteImm {
				b.rcq.expect(t, id, verbs.WCSuccess)
			}
			a.show()
			b.show()
			if !bytes.Equal(got, want) {
				t.Fatalf("%v: contents differ", op)
			}
		}
		if a.faults.Load() == 0 || b.faults.Load() == 0 {
			t.Error("no page faults")
		}
		if used := ring.used(); used != 0 {
			t.Errorf("%d receives are left", used)
		}
	}
}

// TestPagingPatience: a peer whose requests find memory missing for too long fails as one for which
// there is no receive, and the side that waits can be reset.
func TestPagingPatience(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newPager(t, newNode(t, net, 4096, addrA)), newPager(t, newNode(t, net, 4096, addrB))
	var fault atomic.Pointer[PageFault]
	x, y := a.newQP(verbs.RC), b.newQP(verbs.RC, func(i *QPInit) { i.PageFault = func(f PageFault) { fault.Store(&f) } })
	few := func(a *verbs.QPAttr) { a.RNRRetry = 2 }
	x.connect(y, few)
	y.connect(x, few)
	x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: pagedStart + 8, RKey: pagedKey})
	a.cq.expect(t, 1, verbs.WCRNRRetryExcErr)
	want := PageFault{QP: y.Num(), Key: pagedKey, Addr: pagedStart + 8, Length: 8, Write: true, Packet: 8}
	if f := fault.Load(); f == nil || *f != want {
		t.Fatalf("fault %+v", f)
	}
	y.mustModify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
	for _, requester := range []bool{false, true} {
		if err := b.dev.Resume(y.Num(), requester, true); err == nil {
			t.Errorf("resumed after a reset, requester %v", requester)
		}
	}
}

// TestPagingDatagrams: a UD QP waits for memory that it sends. A datagram that finds no memory is lost,
// with its receive.
func TestPagingDatagrams(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newPager(t, newNode(t, net, 4096, addrA)), newPager(t, newNode(t, net, 4096, addrB))
	x := a.newQP(verbs.UD, func(i *QPInit) { i.PageFault = a.answer })
	y := b.newQP(verbs.UD, func(i *QPInit) { i.PageFault = b.answer })
	x.connect(y)
	y.connect(x)
	gid, _ := b.dev.GID(0)
	ah := must(a.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, Port: 1, HopLimit: 64}))(t)
	to := verbs.UDAddr{QPNum: y.Num(), QKey: testQKey, AH: ah.Num()}
	y.postRecv(1, b.sge(0, 1024))
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGL: []verbs.SGE{pagedSGE(0, 100)}, To: to})
	a.cq.expect(t, 2, verbs.WCSuccess)
	b.rcq.expect(t, 1, verbs.WCSuccess)
	if a.faults.Load() != 1 || b.faults.Load() != 0 {
		t.Errorf("%d and %d faults", a.faults.Load(), b.faults.Load())
	}
	y.postRecv(3, pagedSGE(0, 1024))
	x.post(verbs.SendWR{ID: 4, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 100)}, To: to})
	a.cq.expect(t, 4, verbs.WCSuccess)
	if wc := b.rcq.next(t); wc.Status == verbs.WCSuccess || b.faults.Load() != 0 {
		t.Errorf("%+v after %d faults", wc, b.faults.Load())
	}
}

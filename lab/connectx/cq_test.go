//go:build linux

package connectx

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// nops completes n NOPs.
func (q *testQP) nops(n int) {
	for range n {
		q.post(ifc.OpcodeNop, update, 0)
	}
}

// withCQ makes a QP in RTS that has one CQ for both.
func (m *machine) withCQ(q *testCQ) *testQP {
	x := m.createQP(ifc.QpTypeUd, q, q)
	x.connect(0, m.addr())
	return x
}

func TestEntriesOf128Bytes(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(2, 128)
	x := m.withCQ(q)
	for i := range uint16(11) { // the owner bit changes twice
		x.nops(1)
		q.expect(cqeRequest, i, 0)
		q.empty()
	}
	if b := q.mem.at(0, 64); !bytes.Equal(b, make([]byte, 64)) {
		t.Errorf("the lower half is written: % x", b)
	}
}

func TestArm(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(6, 64)
	x := m.withCQ(q)
	x.nops(1) // not armed
	m.noEvent()
	q.arm(false) // there is an entry already
	m.expectEvent(ifc.EventComp, q.num)
	q.arm(false) // the event was about that entry
	m.noEvent()
	x.nops(1)
	m.expectEvent(ifc.EventComp, q.num)
	x.nops(1) // one event for each time it is armed
	m.noEvent()
	q.arm(false) // the event was not about the last entry
	m.expectEvent(ifc.EventComp, q.num)
	q.drain()
	q.arm(false)
	m.noEvent()
	x.nops(1)
	m.expectEvent(ifc.EventComp, q.num)
	q.drain()
	q.arm(true) // for solicited entries: not those of requests
	x.nops(1)
	m.noEvent()
	x.postRecv()
	counter := x.pi
	x.post(0x3f, 0, 0) // errors are solicited
	q.next()
	q.expect(cqeRequestError, counter, 0x02)
	m.expectEvent(ifc.EventComp, q.num)
}

func TestModeration(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(6, 64)
	x := m.withCQ(q)
	modify := func(count, period uint64) {
		m.mustRun(ifc.OpModifyCq, 0, func(in []byte) {
			ifc.ModifyCqInCqn.Set(in, uint64(q.num))
			ifc.ModifyCqInModifyFieldSelectResizeFieldSelect.Set(in, cqPeriod|cqCount)
			ifc.CqcCqMaxCount.Set(ifc.ModifyCqInCqContext.At(in), count)
			ifc.CqcCqPeriod.Set(ifc.ModifyCqInCqContext.At(in), period)
		})
	}
	modify(3, 4095) // 4 ms: it may only be late
	q.arm(false)
	x.nops(1)
	m.expectEvent(ifc.EventComp, q.num)
	q.drain()
	modify(3, 0)
	q.arm(false)
	x.nops(1)
	m.expectEvent(ifc.EventComp, q.num)
}

func TestResize(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(2, 64)
	x := m.withCQ(q)
	x.nops(6)
	// 4 are there; the 2 others have overrun the queue: of another one.
	q = m.createCQ(2, 64)
	x = m.withCQ(q)
	for range 5 {
		x.nops(1)
		q.next()
	}
	x.nops(2)
	to := &testCQ{m: m, num: q.num, log: 4, size: 64, mem: m.alloc(64 << 4), record: q.record}
	for i := range 16 {
		to.mem.at(i*64, 64)[63] = cqeInvalid<<4 | 1
	}
	resize := func(log uint64) ifc.Status {
		_, st := m.run(ifc.OpModifyCq, cqResize, func(in []byte) {
			ifc.ModifyCqInCqn.Set(in, uint64(q.num))
			ifc.ModifyCqInModifyFieldSelectResizeFieldSelect.Set(in, cqSelectSize)
			ifc.CqcLogCqSize.Set(ifc.ModifyCqInCqContext.At(in), log)
		}, to.mem.list()...)
		return st
	}
	if st := resize(1); st != ifc.StatusBadSizeOutsCqesErr {
		t.Errorf("2 entries for 2: status %#x", st)
	}
	if st := resize(23); st != ifc.StatusBadParamErr {
		t.Errorf("2^23 entries: status %#x", st)
	}
	if st := resize(4); st != ifc.StatusOk {
		t.Fatalf("status %#x", st)
	}
	x.nops(3)
	q.expect(cqeRequest, 5, 0)
	q.expect(cqeRequest, 6, 0)
	if e := q.next(); e[cqeOpOwn]>>4 != cqeResize {
		t.Fatalf("no entry of the resize: % x", e)
	}
	q.empty()
	to.ci = q.ci
	for i := range uint16(3) {
		to.expect(cqeRequest, 7+i, 0)
	}
	to.empty()
}

func TestOverrun(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q, other := m.createCQ(2, 64), m.createCQ(2, 64)
	x := m.createQP(ifc.QpTypeUd, q, other)
	x.connect(0, m.addr())
	x.nops(4)
	m.noEvent()
	x.postRecv()
	x.nops(1)
	m.expectEvent(ifc.EventCqError, q.num)
	other.expect(cqeReceiveError, 0, 0x05) // the QP has failed
	out, _ := m.mustRun(ifc.OpQueryCq, 0, func(in []byte) { ifc.QueryCqInCqn.Set(in, uint64(q.num)) })
	if ctx := ifc.QueryCqOutCqContext.At(out); ifc.CqcStatus.Get(ctx) != cqOverflow || ifc.CqcProducerCounter.Get(ctx) != 4 {
		t.Errorf("status %#x, producer %d", ifc.CqcStatus.Get(ctx), ifc.CqcProducerCounter.Get(ctx))
	}
	for range 4 {
		q.next()
	}
	q.empty()
	// Unless the driver says that it does not matter.
	q = m.createCQ(2, 64, func(ctx []byte) { ifc.CqcOi.Set(ctx, 1) })
	x = m.withCQ(q)
	x.nops(9)
	m.noEvent()
}

func TestBadCommands(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(4, 64)
	x := m.withCQ(q)
	unbound := m.createQP(ifc.QpTypeRc, q, q)
	size := uint64(len(m.mem))
	mkey := func(start, length uint64, pas []byte, change func(mkc []byte)) func() ifc.Status {
		return func() ifc.Status {
			_, st := m.run(ifc.OpCreateMkey, 0, func(in []byte) { m.fillMkey(in, start, length, len(pas), change) }, pas...)
			return st
		}
	}
	keep := func([]byte) {}
	qp := func(change func(ctx []byte)) func() ifc.Status {
		return func() ifc.Status {
			_, st := m.run(ifc.OpCreateQp, 0, func(in []byte) {
				x.fill(ifc.CreateQpInQpc.At(in))
				change(ifc.CreateQpInQpc.At(in))
			}, x.mem.list()...)
			return st
		}
	}
	cq := func(change func(ctx []byte)) func() ifc.Status {
		return func() ifc.Status {
			_, st := m.run(ifc.OpCreateCq, 0, func(in []byte) {
				q.fill(ifc.CreateCqInCqContext.At(in))
				change(ifc.CreateCqInCqContext.At(in))
			}, q.mem.list()...)
			return st
		}
	}
	set := func(f ifc.Field, v uint64) func([]byte) { return func(ctx []byte) { f.Set(ctx, v) } }
	simple := func(op uint16, f ifc.Field, v uint64) func() ifc.Status {
		return func() ifc.Status {
			_, st := m.run(op, 0, func(in []byte) { f.Set(in, v) })
			return st
		}
	}
	for _, tt := range []struct {
		name string
		run  func() ifc.Status
		want ifc.Status
	}{
		{"mkey of memory that is not there", mkey(0, 4096, m.pages(base+size, 2), keep), ifc.StatusBadParamErr},
		{"mkey with fewer pages than it needs", mkey(0, 3*4096, m.pages(base, 2), keep), ifc.StatusBadInpLenErr},
		{"mkey of a page that is not aligned", mkey(0, 4096, m.pages(base+8, 2), keep), ifc.StatusBadParamErr},
		{"mkey that wraps around", mkey(1<<64-4096, 8192, m.pages(base, 2), keep), ifc.StatusBadParamErr},
		{"mkey of a PD that is not there", mkey(0, 4096, m.pages(base, 2), set(ifc.MkcPd, 99)), ifc.StatusBadResErr},
		{"mkey of small pages", mkey(0, 4096, m.pages(base, 2), set(ifc.MkcLogPageSize, 11)), ifc.StatusBadParamErr},
		{"mkey of large pages", mkey(0, 4096, m.pages(base, 2), set(ifc.MkcLogPageSize, 63)), ifc.StatusBadParamErr},
		{"mkey of keys", mkey(0, 4096, m.pages(base, 2), set(ifc.MkcAccessMode10, ifc.MkcModeKlms)), ifc.StatusBadParamErr},
		{"mkey of too many keys", mkey(0, 1<<logMaxKLMs+1, bytes.Repeat(seg(1, m.key, base), 1<<logMaxKLMs+4), set(ifc.MkcAccessMode10, ifc.MkcModeKlms)), ifc.StatusBadParamErr},
		{"mkey of large pages that are not there", func() ifc.Status {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			st := mkey(0, 1<<42, make([]byte, 64), set(ifc.MkcLogPageSize, 40))()
			if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 1<<20 {
				t.Errorf("a key of 5 entries has taken %d bytes of memory", after.TotalAlloc-before.TotalAlloc)
			}
			return st
		}, ifc.StatusBadParamErr},
		{"mkey in a large page whose end is not there", mkey(base+size-4096, 4096, m.pages(32<<20, 2), set(ifc.MkcLogPageSize, 21)), ifc.StatusOk},
		{"CQ of an EQ that is not there", cq(set(ifc.CqcCEqnOrApuElement, 63)), ifc.StatusBadResErr},
		{"CQ of a UAR that is not there", cq(set(ifc.CqcUarPage, 3)), ifc.StatusBadResErr},
		{"CQ that is compressed", cq(set(ifc.CqcCqeCompEn, 1)), ifc.StatusBadParamErr},
		{"CQ of 256 bytes an entry", cq(set(ifc.CqcCqeSz, 2)), ifc.StatusBadParamErr},
		{"CQ with fewer pages than it needs", cq(set(ifc.CqcLogCqSize, 9)), ifc.StatusBadInpLenErr},
		{"CQ with a record that is not there", cq(set(ifc.CqcDbrAddr, 8)), ifc.StatusBadParamErr},
		{"CQ with a record that is not aligned", cq(set(ifc.CqcDbrAddr, base+4)), ifc.StatusBadParamErr},
		{"CQ in use", simple(ifc.OpDestroyCq, ifc.DestroyCqInCqn, uint64(q.num)), ifc.StatusResBusy},
		{"CQ that is not there", simple(ifc.OpDestroyCq, ifc.DestroyCqInCqn, 999), ifc.StatusBadResErr},
		{"QP for UMR requests, which the kernel gives no PD", qp(func(ctx []byte) { ifc.QpcSt.Set(ctx, ifc.QpTypeRegUmr); ifc.QpcPd.Set(ctx, 0) }), ifc.StatusOk},
		{"QP of a type that is not there", qp(set(ifc.QpcSt, ifc.QpTypeXrc)), ifc.StatusBadParamErr},
		{"QP of a PD that is not there", qp(set(ifc.QpcPd, 99)), ifc.StatusBadResErr},
		{"QP of CQs that are not there", qp(func(ctx []byte) { ifc.QpcCqnSnd.Set(ctx, 99); ifc.QpcCqnRcv.Set(ctx, 99) }), ifc.StatusBadResErr},
		{"QP of an SRQ that is not there", qp(func(ctx []byte) { ifc.QpcRqType.Set(ctx, rqSRQ); ifc.QpcSrqnRmpnXrqn.Set(ctx, 9) }), ifc.StatusBadResErr},
		{"QP that scatters to CQEs", qp(set(ifc.QpcCsRes, 1)), ifc.StatusBadParamErr},
		{"QP with fewer pages than it needs", qp(set(ifc.QpcLogSqSize, 10)), ifc.StatusBadInpLenErr},
		{"QP 1 twice", func() ifc.Status { qp(set(ifc.QpcSt, ifc.QpTypeQp1))(); return qp(set(ifc.QpcSt, ifc.QpTypeQp1))() }, ifc.StatusNoResErr},
		{"QP that is not there", simple(ifc.OpDestroyQp, ifc.DestroyQpInQpn, 0xfff), ifc.StatusBadResErr},
		{"PD in use", simple(ifc.OpDeallocPd, ifc.DeallocPdInPd, uint64(m.pd)), ifc.StatusBadResStateErr},
		{"RTS from RESET", func() ifc.Status { return unbound.modify(ifc.OpRtr2rtsQp, nil) }, ifc.StatusBadQpStateErr},
		{"ERR from RESET", func() ifc.Status { return unbound.modify(ifc.Op2errQp, nil) }, ifc.StatusBadQpStateErr},
		{"INIT from RTS", func() ifc.Status { return x.modify(ifc.OpRst2initQp, nil) }, ifc.StatusBadQpStateErr},
		{"a bit of the mask that is not there", func() ifc.Status {
			return x.modify(ifc.OpRts2rtsQp, func(in, _ []byte) { ifc.Rst2initQpInOptParamMask.Set(in, 1<<31) })
		}, ifc.StatusBadParamErr},
	} {
		if st := tt.run(); st != tt.want {
			t.Errorf("%s: status %#x, want %#x", tt.name, st, tt.want)
		}
	}
	unbound.mustModify(ifc.OpRst2initQp, nil)
	if st := unbound.modify(ifc.OpInit2rtrQp, nil); st != ifc.StatusBadParamErr { // no path, no MTU
		t.Errorf("RTR without a path: status %#x", st)
	}
}

// TestQPWithoutQueues has QPs that lack one queue, or both, and everything that reads queues.
func TestQPWithoutQueues(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	for _, change := range []func(ctx []byte){
		func(ctx []byte) { ifc.QpcNoSq.Set(ctx, 1) },
		func(ctx []byte) { ifc.QpcRqType.Set(ctx, rqNone) },
		func(ctx []byte) { ifc.QpcNoSq.Set(ctx, 1); ifc.QpcRqType.Set(ctx, rqNone) },
	} {
		for _, st := range []int{ifc.QpTypeRc, ifc.QpTypeUd} {
			x := m.createQP(st, m.createCQ(4, 64), m.createCQ(4, 64), change)
			x.connect(x.num, m.addr())
			x.ring()
			x.query()
			x.mustModify(ifc.Op2errQp, nil)
			x.query()
			m.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(x.num)) })
		}
	}
}

func TestKeys(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x, _ := pair(m, m, ifc.QpTypeRc)
	// Pages in any order, an address that is not aligned, and rights.
	scattered := m.alloc(4 * pageBytes)
	key := m.register(0x7000_0000_0123, 3*pageBytes, scattered.list(), func(mkc []byte) { ifc.MkcRr.Set(mkc, 0) })
	src := m.next
	m.next += 4 * pageBytes
	fillPattern(m.bytes(src, 3*pageBytes), 1)
	x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(0x7000_0000_0123, key), seg(3*pageBytes, m.key, src))
	x.send.expect(cqeRequest, 0, 0)
	var got []byte
	for i := range 4 {
		got = append(got, scattered.at(i*pageBytes, pageBytes)...)
	}
	if !bytes.Equal(got[0x123:0x123+3*pageBytes], m.bytes(src, 3*pageBytes)) || !bytes.Equal(got[:0x123], make([]byte, 0x123)) {
		t.Error("contents differ")
	}
	x.post(ifc.OpcodeRdmaRead, update, 0, remoteSeg(0x7000_0000_0123, key), seg(8, m.key, src))
	x.send.expect(cqeRequestError, 1, 0x13)
	x, y := pair(m, m, ifc.QpTypeRc)
	// All memory by its addresses, whatever start says.
	all := m.register(1<<62, 0, nil, func(mkc []byte) {
		ifc.MkcAccessMode10.Set(mkc, ifc.MkcModePa)
		ifc.MkcLength64.Set(mkc, 1)
	})
	x.post(ifc.OpcodeSend, 0, 0, seg(8, all, src))
	counter := x.pi
	x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(src+pageBytes, all), seg(16, all, src))
	y.postRecv(seg(8, all, src+2*pageBytes))
	x.send.expect(cqeRequest, counter, 0)
	y.recv.expect(cqeSend, 0, 0)
	if !bytes.Equal(m.bytes(src+pageBytes, 16), m.bytes(src, 16)) || !bytes.Equal(m.bytes(src+2*pageBytes, 8), m.bytes(src, 8)) {
		t.Error("contents differ")
	}
	// There is no memory at address 0, nor at the end.
	for _, addr := range []uint64{0, base + uint64(len(m.mem)), physicalSize - 8} {
		x, _ := pair(m, m, ifc.QpTypeRc)
		x.post(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(addr, all), seg(8, all, src))
		x.send.expect(cqeRequestError, 0, 0x13)
		x, _ = pair(m, m, ifc.QpTypeRc)
		x.post(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(src, all), seg(8, all, addr))
		x.send.expect(cqeRequestError, 0, 0x04)
	}
	m.mustRun(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(all>>8)) })
	if _, st := m.run(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(all>>8)) }); st != ifc.StatusBadResErr {
		t.Errorf("destroyed twice: status %#x", st)
	}
}

// FuzzRequests has a guest that writes anything to its queues and doorbells: nothing crashes, and
// nothing is written but what is its.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0xa, 0, 0, 0x10, 2, 0, 0, 0, 8, 0, 0, 0, 0, 0x80, 0, 0, 4, 1, 2, 3, 4}, uint32(1), uint32(1))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 8, 0, 0, 0x10, 0x3f}, 128), uint32(16), uint32(3))
	f.Add(bytes.Repeat([]byte{0xff}, 1024), uint32(0xffffffff), uint32(0x8000))
	f.Fuzz(func(t *testing.T, data []byte, sends, recvs uint32) {
		m := newMachine(t, newHub(), 1)
		x, y := pair(m, m, ifc.QpTypeRc)
		u := m.withCQ(m.createCQ(4, 128))
		// The guest's own memory ends here: the last page is not registered, and nobody's queue.
		m.mustRun(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(m.key>>8)) })
		n := len(m.mem)/pageBytes - 1
		m.key = m.register(base, uint64(n)*pageBytes, m.pages(base, n+n%2), func([]byte) {})
		canary := m.mem[n*pageBytes:]
		fillPattern(canary, 3)
		want := bytes.Clone(canary)
		for _, q := range []*testQP{x, y, u} {
			for i := 0; i < len(data) && i < len(q.mem.addr)*pageBytes; i += pageBytes {
				copy(q.mem.at(i, pageBytes), data[i:])
			}
			for i := 0; i < min(len(data), sendBlock<<q.logSend); i += sendBlock {
				copy(q.mem.at(testStride<<q.logRecv+i, sendBlock), data[i:])
			}
			be.PutUint32(q.record.at(0, 4), recvs)
			be.PutUint32(q.record.at(4, 4), sends)
			b := make([]byte, 8)
			copy(b, data)
			be.PutUint32(b[4:], q.num<<8)
			m.dev.doorbell(m.uar, uarSend, b)
			m.dev.doorbell(m.uar, uarCQ, data[:min(len(data), 8)])
			for i := 0; i < len(data); { // to registers, in any order and size
				n := min(int(data[i]&0x1f)+4, len(data)-i)
				m.dev.doorbell(m.uar, uarSend+int(data[i])*4, data[i:i+n])
				copy(b, data[i:i+n])
				be.PutUint32(b[4:], q.num<<8|uint32(data[i]&0x1f))
				m.dev.doorbell(m.uar, uarSend+int(data[i])&0x300, b)
				i += n
			}
		}
		if !bytes.Equal(canary, want) {
			t.Error("memory that is nobody's is written")
		}
	})
}

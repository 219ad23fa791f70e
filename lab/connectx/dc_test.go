//go:build linux

package connectx

import (
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

const testDCKey = 0x0123456789abcdef

// createDCT makes a target with an SRQ.
func (m *machine) createDCT(s *testSRQ, recv *testCQ, change ...func(dctc []byte)) (num uint32, st ifc.Status) {
	m.t.Helper()
	out, st := m.run(ifc.OpCreateDct, 0, func(in []byte) {
		ctx := ifc.CreateDctInDctContextEntry.At(in)
		for f, v := range map[ifc.Field]uint64{
			ifc.DctcPd: uint64(m.pd), ifc.DctcSrqnXrqn: uint64(s.num), ifc.DctcCqn: uint64(recv.num), ifc.DctcUserIndex: 0x4321,
			ifc.DctcDcAccessKey: testDCKey, ifc.DctcMtu: 3, ifc.DctcRwe: 1, ifc.DctcMinRnrNak: 1,
		} {
			f.Set(ctx, v)
		}
		for _, f := range change {
			f(ctx)
		}
	})
	return ifc.CreateDctOutDctn.U32(out), st
}

// connectDCI moves a DCI to RTS.
func (q *testQP) connectDCI() {
	q.m.t.Helper()
	q.mustModify(ifc.OpRst2initQp, func(_, ctx []byte) { inPath(ifc.AdsVhcaPortNum).Set(ctx, 1) })
	q.mustModify(ifc.OpInit2rtrQp, func(_, ctx []byte) { ifc.QpcMtu.Set(ctx, 3) })
	q.mustModify(ifc.OpRtr2rtsQp, func(_, ctx []byte) {
		ifc.QpcNextSendPsn.Set(ctx, 77)
		ifc.QpcLogSraMax.Set(ctx, 2)
		ifc.QpcRetryCount.Set(ctx, 2)
		inPath(ifc.AdsAckTimeout).Set(ctx, 10)
	})
}

// TestDynamicTarget sends to a target of another machine, and drains it.
func TestDynamicTarget(t *testing.T) {
	h := newHub()
	a, b := newMachine(t, h, 1), newMachine(t, h, 2)
	s, recv, send := b.createSRQ(false), b.createCQ(4, 64), a.createCQ(4, 64)
	num, st := b.createDCT(s, recv)
	if st != ifc.StatusOk {
		t.Fatalf("status %#x", st)
	}
	for name, change := range map[string]func([]byte){
		"MTU": func(c []byte) { ifc.DctcMtu.Set(c, 0) }, "state": func(c []byte) { ifc.DctcState.Set(c, 1) },
		"SRQ": func(c []byte) { ifc.DctcSrqnXrqn.Set(c, 0xffff) }, "CQ": func(c []byte) { ifc.DctcCqn.Set(c, 0xffff) },
	} {
		if _, st := b.createDCT(s, recv, change); st == ifc.StatusOk {
			t.Errorf("a target with a wrong %s", name)
		}
	}
	q := a.createQP(ifc.QpTypeDci, send, send)
	q.connectDCI()
	av := vector(num, b.addr())
	be.PutUint64(av[avQKey:], testDCKey)

	s.post(seg(64, b.key, b.next))
	q.post(ifc.OpcodeSendImm, update, 0x01020304, av, inlineSeg([]byte("to a target")))
	send.expect(cqeRequest, 0, 0)
	e := recv.expect(cqeSendImm, 0, 0)
	if be.Uint32(e[cqeUserIndex:])&indexMask != 0x4321 || be.Uint32(e[cqeOpQPN:])&indexMask != num || be.Uint32(e[cqeImm:]) != 0x01020304 {
		t.Errorf("the entry is % x", e)
	}
	if got := string(b.bytes(b.next, 11)); got != "to a target" {
		t.Errorf("received %q", got)
	}
	// The target grants WRITEs and no READs.
	q.post(ifc.OpcodeRdmaWrite, update, 0, av, remoteSeg(b.next, b.key), inlineSeg([]byte("x")))
	send.expect(cqeRequest, 2, 0)
	out, _ := b.mustRun(ifc.OpQueryDct, 0, func(in []byte) { ifc.QueryDctInDctn.Set(in, uint64(num)) })
	if ctx := ifc.QueryDctOutDctContextEntry.At(out); ifc.DctcDcAccessKey.Get(ctx) != testDCKey || ifc.DctcState.Is(ctx) {
		t.Errorf("the context is % x", ctx)
	}
	b.expectEventOrNone(ifc.EventCommEst)
	b.mustRun(ifc.OpDrainDct, 0, func(in []byte) { ifc.DrainDctInDctn.Set(in, uint64(num)) })
	b.expectEvent(ifc.EventDctDrained, num)
	q.post(ifc.OpcodeRdmaWrite, update, 0, av, remoteSeg(b.next, b.key), inlineSeg([]byte("y")))
	send.expect(cqeRequestError, 4, 0x15)
	if st := s.destroy(); st != ifc.StatusResBusy {
		t.Errorf("the target's SRQ is destroyed: status %#x", st)
	}
	b.mustRun(ifc.OpDestroyDct, 0, func(in []byte) { ifc.DestroyDctInDctn.Set(in, uint64(num)) })
	if st := s.destroy(); st != ifc.StatusOk {
		t.Errorf("destroyed: status %#x", st)
	}
}

// FuzzDatagrams has a guest that sends datagrams, and requests to a target of DC, whose address vectors
// differ from good ones, and that links and counts its shared receives as it likes.
func FuzzDatagrams(f *testing.F) {
	for _, infiniBand := range []bool{false, true} {
		f.Add([]byte{}, infiniBand, uint16(1), uint16(1))
		f.Add([]byte{avQPN: 0x80, avLID: 1}, infiniBand, uint16(0xffff), uint16(0xffff))
		f.Add([]byte{avGRHFlow: 0x40, avGID: 0xff}, infiniBand, uint16(3), uint16(40))
	}
	f.Fuzz(func(t *testing.T, change []byte, infiniBand bool, next, receives uint16) {
		m := newMachine(t, newHub(), 1, func(c *Config) { c.InfiniBand = infiniBand })
		s, recv := m.createSRQ(false), m.createCQ(4, 64)
		num, st := m.createDCT(s, recv)
		if st != ifc.StatusOk {
			t.Fatalf("status %#x", st)
		}
		s.post(seg(64, m.key, m.next))
		be.PutUint16(s.mem.at(2, 2), next)
		be.PutUint32(s.record.at(0, 4), uint32(receives))
		dci := m.createQP(ifc.QpTypeDci, m.createCQ(4, 64), m.createCQ(4, 64))
		dci.connectDCI()
		ud := m.createQP(ifc.QpTypeUd, m.createCQ(4, 64), m.createCQ(4, 64))
		ud.connect(0, m.addr())
		ud.postRecv(seg(200, m.key, m.next))
		for _, q := range []*testQP{dci, ud} {
			av := vector(ud.num, m.addr())
			if q == dci {
				av = vector(num, m.addr())
				be.PutUint64(av[avQKey:], testDCKey)
			}
			for i := range min(len(change), len(av)) {
				av[i] ^= change[i]
			}
			for range 3 {
				q.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("data")))
			}
		}
	})
}

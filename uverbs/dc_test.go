//go:build linux

package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const (
	dcKey    = 0x1234567890abcdef
	dcMemory = 1 << 20
)

// dcSide has what the tests of DC make on a device.
type dcSide struct {
	t    *testing.T
	ctx  *uverbs.Context
	pd   *uverbs.PD
	gid  verbs.GIDEntry
	port *verbs.PortAttr
}

func newDCSide(t *testing.T) *dcSide {
	t.Helper()
	labtest.RequireAdapter(t)
	c := labtest.OpenDevice(t, labtest.MLX5)
	return &dcSide{
		t: t, ctx: c, pd: labtest.Made(c.AllocPD())(t), gid: labtest.Must(c.FindGID(1, netip.Addr{}))(t), port: labtest.Must(c.QueryPort(1))(t),
	}
}

// dcTarget is a DCT with memory, and receives.
type dcTarget struct {
	*uverbs.QP
	cq  *uverbs.CQ
	srq *uverbs.SRQ
	mr  *uverbs.MR
	ah  *uverbs.AH
}

func (s *dcSide) newTarget(key uint64) *dcTarget {
	t := s.t
	t.Helper()
	d := &dcTarget{cq: labtest.Made(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 256}))(t)}
	d.srq = labtest.Made(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 128, MaxSGE: 1}))(t)
	d.mr = labtest.Made(s.pd.AllocMR(dcMemory, verbs.AccessAll|verbs.AccessMWBind, uverbs.MROptions{}))(t)
	d.QP = labtest.Must(s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: d.cq, SRQ: d.srq, DCKey: key}))(t)
	t.Cleanup(func() { d.QP.Close() }) // a test may have closed it
	if d.Num() != 0 {
		t.Errorf("the DCT has number %#x before it is started", d.Num())
	}
	if a := labtest.Must(d.Query())(t); a.State != verbs.StateReset {
		t.Errorf("a new DCT is in state %v", a.State)
	}
	labtest.Check(t, d.StartDC(s.gid, uverbs.ConnectOptions{Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic}))
	if d.Num() == 0 {
		t.Fatal("the DCT has no number")
	}
	av := verbs.AddressVector{Global: true, DGID: s.gid.GID, SGIDIndex: uint8(s.gid.Index), HopLimit: 64, Port: uint8(s.gid.Port), DLID: s.port.LID}
	d.ah = labtest.Made(s.pd.CreateAH(av))(t)
	return d
}

// dcInitiator is a DCI with memory.
type dcInitiator struct {
	*uverbs.QP
	side *dcSide
	cq   *uverbs.CQ
	mr   *uverbs.MR
}

func (s *dcSide) newInitiator(key uint64) *dcInitiator {
	t := s.t
	t.Helper()
	q := &dcInitiator{side: s, cq: labtest.Made(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 256}))(t)}
	q.mr = labtest.Made(s.pd.AllocMR(dcMemory, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	size := verbs.QPCap{MaxSendWR: 17, MaxSendSGE: 3, MaxInline: 100}
	q.QP = labtest.Made(s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: q.cq, Cap: size, DCKey: key}))(t)
	q.start()
	return q
}

func (q *dcInitiator) start() {
	q.side.t.Helper()
	labtest.Check(q.side.t, q.StartDC(q.side.gid, uverbs.ConnectOptions{Timeout: 14, RetryCount: 2}))
}

// restart resets the DCI after an error.
func (q *dcInitiator) restart() {
	q.side.t.Helper()
	labtest.Check(q.side.t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
	q.start()
}

// do posts a request to a target and returns its completion.
func (q *dcInitiator) do(d *dcTarget, wr verbs.SendWR) verbs.WC {
	t := q.side.t
	t.Helper()
	wr.To, wr.Flags = d.ah.To(d.Num(), 0), wr.Flags|verbs.SendSignaled
	if n, err := q.PostSend(wr); n != 1 {
		t.Fatal(err)
	}
	return nextWC(t, q.cq)
}

// must is do for a request that succeeds.
func (q *dcInitiator) must(d *dcTarget, wr verbs.SendWR) {
	t := q.side.t
	t.Helper()
	wc := q.do(d, wr)
	if err := wc.Err(); err != nil {
		t.Fatalf("%v to DCT %#x: %v", wr.Opcode, d.Num(), err)
	}
	if wc.ID != wr.ID || wc.QPNum != q.Num() {
		t.Errorf("%v: completion %+v", wr.Opcode, wc)
	}
}

// write returns a request that writes a byte of the initiator's memory to the start of a target's.
func (q *dcInitiator) write(d *dcTarget, id uint64) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{q.mr.SGE(0, 1)}, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey()}
}

// nextWC returns the next completion.
func nextWC(t *testing.T, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for start := time.Now(); cq.Poll(wc[:]) == 0; {
		if time.Since(start) > 30*time.Second {
			t.Fatal("no completion")
		}
	}
	return wc[0]
}

// TestDC sends all kinds of messages from one initiator to several targets in turn, inline and from memory,
// of up to many packets, so that requests wrap around the end of the queue at any place.
func TestDC(t *testing.T) {
	s := newDCSide(t)
	targets := []*dcTarget{s.newTarget(dcKey), s.newTarget(dcKey), s.newTarget(dcKey)}
	q := s.newInitiator(dcKey)
	random := labtest.RandomBytes(1, dcMemory)
	for round := range labtest.Rounds(200, 40) {
		for i, d := range targets {
			id := uint64(round*10 + i)
			n := 1 + 997*round*(i+1)%30000
			copy(q.mr.Bytes(), random[round*100+i:][:n])
			q.must(d, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{q.mr.SGE(0, n/2), q.mr.SGE(n/2, n-n/2)}, RemoteAddr: d.mr.Addr() + 8, RKey: d.mr.RKey()})
			if !bytes.Equal(d.mr.Bytes()[8:][:n], random[round*100+i:][:n]) {
				t.Fatalf("round %d: what was written to target %d differs", round, i)
			}
			clear(q.mr.Bytes()[:n])
			q.must(d, verbs.SendWR{ID: id, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{q.mr.SGE(0, n)}, RemoteAddr: d.mr.Addr() + 8, RKey: d.mr.RKey()})
			if !bytes.Equal(q.mr.Bytes()[:n], random[round*100+i:][:n]) {
				t.Fatalf("round %d: what was read from target %d differs", round, i)
			}
			q.must(d, verbs.SendWR{
				ID: id, Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{q.mr.SGE(0, 8)}, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(), Args: &verbs.SendArgs{CompareAdd: uint64(i + 1)},
			})
			if got := binary.NativeEndian.Uint64(q.mr.Bytes()); got != uint64(2*round*(i+1)) {
				t.Fatalf("round %d: fetch and add: the old value is %d", round, got)
			}
			q.must(d, verbs.SendWR{
				ID: id, Opcode: verbs.OpCompareSwap, SGL: []verbs.SGE{q.mr.SGE(0, 8)}, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(),
				Args: &verbs.SendArgs{CompareAdd: uint64((2*round + 1) * (i + 1)), Swap: uint64((2*round + 2) * (i + 1))},
			})
			inline := random[round : round+1+(round*i)%100]
			for k, wr := range []verbs.SendWR{
				{Opcode: verbs.OpSend, Inline: inline},
				{Opcode: verbs.OpSendImm, Inline: inline, Imm: 0x01020304},
				{Opcode: verbs.OpRDMAWriteImm, Inline: inline, Imm: 0x05060708, RemoteAddr: d.mr.Addr() + 4096, RKey: d.mr.RKey()},
			} {
				if _, err := d.srq.PostRecv(verbs.RecvWR{ID: uint64(k), SGL: []verbs.SGE{d.mr.SGE(8192, 4096)}}); err != nil {
					t.Fatal(err)
				}
				wr.ID = id
				q.must(d, wr)
				wc := nextWC(t, d.cq)
				if err := wc.Err(); err != nil || wc.ID != uint64(k) || wc.QPNum != d.Num() || int(wc.ByteLen) != len(inline) {
					t.Fatalf("round %d: receive of %v: %+v, %v", round, wr.Opcode, wc, err)
				}
				if wr.Imm != 0 && wc.Imm() != wr.Imm {
					t.Errorf("immediate %#x", wc.Imm())
				}
				at := 8192
				if wr.Opcode == verbs.OpRDMAWriteImm {
					at = 4096
				}
				if !bytes.Equal(d.mr.Bytes()[at:][:len(inline)], inline) {
					t.Errorf("round %d: what was sent to target %d differs", round, i)
				}
			}
		}
	}

	// Many requests at once, to the targets in turn.
	var wrs []verbs.SendWR
	for i := range 16 {
		d := targets[i%3]
		q.mr.Bytes()[i] = byte(i + 1)
		wrs = append(wrs, verbs.SendWR{
			ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{q.mr.SGE(i, 1)},
			RemoteAddr: d.mr.Addr() + 5000 + uint64(i), RKey: d.mr.RKey(), To: d.ah.To(d.Num(), 0),
		})
	}
	if n, err := q.PostSend(wrs...); n != len(wrs) {
		t.Fatal(err)
	}
	for i := range wrs {
		if wc := nextWC(t, q.cq); wc.Err() != nil || wc.ID != uint64(i) {
			t.Fatalf("request %d: %+v", i, wc)
		}
		if targets[i%3].mr.Bytes()[5000+i] != byte(i+1) {
			t.Errorf("request %d has completed and not arrived", i)
		}
	}

	// A DCI binds windows, as an RC QP does.
	mw := labtest.Made(s.pd.AllocMW(verbs.MWType1))(t)
	d := targets[0]
	bind := &verbs.MWBind{Type: verbs.MWType1, RKey: mw.RKey(), NewRKey: verbs.NextRKey(mw.RKey()), LKey: d.mr.LKey(), Addr: d.mr.Addr() + 64, Length: 8, Access: verbs.AccessRemoteWrite}
	q.must(d, verbs.SendWR{ID: 1, Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: bind}})
	through := q.write(d, 2)
	through.RemoteAddr, through.RKey = d.mr.Addr()+64, bind.NewRKey
	q.must(d, through)
	through.RemoteAddr++ // the window has 8 bytes
	through.SGL[0].Length = 8
	if wc := q.do(d, through); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("beyond the window: %v", wc.Status)
	}
}

// TestDCKeyOfTarget sends to targets with different keys.
func TestDCKeyOfTarget(t *testing.T) {
	s := newDCSide(t)
	a, b, none := s.newTarget(dcKey), s.newTarget(dcKey+1<<40), s.newTarget(0)
	q := s.newInitiator(dcKey)
	for range 3 {
		q.must(a, q.write(a, 1))
		wr := q.write(b, 2)
		wr.Args = &verbs.SendArgs{DCKey: dcKey + 1<<40}
		q.must(b, wr)
	}
	if wc := q.do(b, q.write(b, 3)); wc.Status != verbs.WCRetryExcErr {
		t.Errorf("with the key of another target: %v", wc.Status)
	}
	q.restart()
	q.must(a, q.write(a, 4))
	p := s.newInitiator(0)
	p.must(none, p.write(none, 5))
}

// TestDCError fails requests of a DCI, and resets it.
func TestDCError(t *testing.T) {
	s := newDCSide(t)
	d, other, q := s.newTarget(dcKey), s.newTarget(dcKey+1), s.newInitiator(dcKey)
	badKey, absent := q.write(d, 7), *d
	badKey.RKey++
	absent.QP = labtest.Must(s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: d.cq, SRQ: d.srq, DCKey: dcKey}))(t)
	labtest.Check(t, absent.StartDC(s.gid, uverbs.ConnectOptions{}), absent.Close())
	for name, c := range map[string]struct {
		to     *dcTarget
		wr     verbs.SendWR
		status verbs.WCStatus
	}{
		"key of the target":   {other, q.write(other, 7), verbs.WCRetryExcErr},
		"key of the memory":   {d, badKey, verbs.WCRemAccessErr},
		"closed target":       {&absent, q.write(d, 7), verbs.WCRetryExcErr},
		"SEND to no receives": {d, verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: []verbs.SGE{q.mr.SGE(0, 8)}}, verbs.WCRNRRetryExcErr},
	} {
		t.Run(name, func(t *testing.T) {
			if c.status == verbs.WCRNRRetryExcErr {
				labtest.Check(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState),
					q.StartDC(s.gid, uverbs.ConnectOptions{Timeout: 8, RetryCount: 2, RNRRetry: 1}))
			}
			if wc := q.do(c.to, c.wr); wc.Status != c.status || wc.ID != 7 || wc.QPNum != q.Num() {
				t.Errorf("completion %+v, want %v", wc, c.status)
			}
			// What is behind it is flushed, whichever target it is for.
			if wc := q.do(d, q.write(d, 8)); wc.Status != verbs.WCFlushErr || wc.ID != 8 {
				t.Errorf("completion %+v behind the error", wc)
			}
			q.restart()
			q.must(d, q.write(d, 9))
		})
	}
}

// TestDCTargetClosed closes a target that is being written to.
func TestDCTargetClosed(t *testing.T) {
	s := newDCSide(t)
	for range labtest.Rounds(20, 3) {
		d, other, q := s.newTarget(dcKey), s.newTarget(dcKey), s.newInitiator(dcKey)
		done := make(chan error, 1)
		wr := q.write(d, 1)
		wr.SGL[0].Length = dcMemory
		writes := 0
		for {
			wc := q.do(d, wr)
			if wc.Status == verbs.WCSuccess {
				if writes++; writes == 1 {
					go func() { done <- d.Close() }()
				}
				continue
			}
			if wc.Status != verbs.WCRetryExcErr || writes == 0 {
				t.Fatalf("after %d writes: %v", writes, wc.Status)
			}
			break
		}
		labtest.Check(t, <-done)
		q.restart()
		q.must(other, q.write(other, 2))
		t.Logf("%d writes of 1 MiB before the target was closed", writes)
	}
}

// TestDCRefused checks what QPs of DC do not take, and that errors say so.
func TestDCRefused(t *testing.T) {
	s := newDCSide(t)
	d, q := s.newTarget(dcKey), s.newInitiator(dcKey)
	refused := func(err error, is error, text ...string) {
		t.Helper()
		if !errors.Is(err, is) {
			t.Errorf("%v: want one that is %v", err, is)
			return
		}
		for _, part := range text {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not have %q", err, part)
			}
		}
	}
	_, err := s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: d.cq})
	refused(err, syscall.EINVAL, "a DCT receives from an SRQ")
	_, err = s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: d.cq, SRQ: d.srq})
	refused(err, syscall.EINVAL, "a DCI receives nothing")
	_, err = s.pd.CreateQP(uverbs.QPOptions{SendCQ: d.cq, RecvCQ: d.cq, DCKey: 5})
	refused(err, syscall.EINVAL, "DCKey 0x5", "type RC")
	_, err = d.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
	refused(err, errors.ErrUnsupported, "post to a DCI")
	_, err = d.PostRecv(verbs.RecvWR{})
	refused(err, verbs.ErrSRQ)
	_, err = q.PostRecv(verbs.RecvWR{})
	refused(err, verbs.ErrNoRecvRoom)
	_, err = q.PostSend(verbs.SendWR{Opcode: verbs.OpSend, To: verbs.UDAddr{AH: 9999}})
	refused(err, err, "no address handle with number 9999")
	refused(d.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState), syscall.EINVAL, "a DCT in RTR cannot be moved to RESET")
	refused(q.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState), syscall.EINVAL, "cannot be moved to SQD")
	rc := labtest.Made(s.pd.CreateQP(uverbs.QPOptions{SendCQ: q.cq, RecvCQ: q.cq}))(t)
	refused(rc.StartDC(s.gid, uverbs.ConnectOptions{}), syscall.EINVAL, "type RC", "neither DCI nor DCT")
	fresh := labtest.Made(s.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: q.cq}))(t)
	refused(fresh.Connect(verbs.QPAddr{Port: 1}, verbs.QPAddr{}, uverbs.ConnectOptions{}), syscall.EINVAL, "DCI QPs do not take Access")
	if a := labtest.Must(d.Query())(t); a.State != verbs.StateRTR || a.PathMTU != s.port.ActiveMTU || a.Access&verbs.AccessRemoteWrite == 0 || a.MinRNRTimer != 12 {
		t.Errorf("attributes of a DCT: %+v", a)
	}
	if a := labtest.Must(q.Query())(t); a.State != verbs.StateRTS || a.RetryCount != 2 || a.Timeout != 14 {
		t.Errorf("attributes of a DCI: %+v", a)
	}
}

// TestDCUnsupported checks that other devices refuse both types.
func TestDCUnsupported(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c := labtest.OpenDevice(t, device)
		if c.Driver() == "mlx5" {
			t.Skip("ConnectX has DC")
		}
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		pd, cq := labtest.Made(c.AllocPD())(t), labtest.Made(c.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: 1}))(t)
		for _, opt := range []uverbs.QPOptions{{Type: verbs.DCI, SendCQ: cq}, {Type: verbs.DCT, RecvCQ: cq, SRQ: srq}} {
			qp, err := pd.CreateQP(opt)
			if err == nil {
				qp.Close()
			}
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), opt.Type.String()+" is dynamically connected") {
				t.Errorf("%v: %v", opt.Type, err)
			}
		}
	})
}

// TestDCPostAllocates checks that posting and polling a DCI's requests allocates nothing.
func TestDCPostAllocates(t *testing.T) {
	s := newDCSide(t)
	d, q := s.newTarget(dcKey), s.newInitiator(dcKey)
	to, sgl, args := d.ah.To(d.Num(), 0), []verbs.SGE{q.mr.SGE(0, 8)}, verbs.SendArgs{DCKey: dcKey}
	if n := testing.AllocsPerRun(20, func() {
		for _, a := range []*verbs.SendArgs{nil, &args} {
			if _, err := q.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: sgl, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(), To: to, Args: a}); err != nil {
				t.Error(err)
			}
			var wcs [1]verbs.WC
			for q.cq.Poll(wcs[:]) == 0 {
			}
			if err := wcs[0].Err(); err != nil {
				t.Error(err)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

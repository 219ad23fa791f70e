package engine

import (
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/roce"
)

// TestTransitions tries every transition with the attributes that it requires and allows,
// with one missing, and with one too many.
func TestTransitions(t *testing.T) {
	all := []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateSQD, verbs.StateSQE, verbs.StateErr}
	valid := map[verbs.QPState][]verbs.QPState{
		verbs.StateReset: {verbs.StateReset, verbs.StateInit},
		verbs.StateInit:  {verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateErr},
		verbs.StateRTR:   {verbs.StateReset, verbs.StateRTS, verbs.StateErr},
		verbs.StateRTS:   {verbs.StateReset, verbs.StateRTS, verbs.StateSQD, verbs.StateErr},
		verbs.StateSQD:   {verbs.StateReset, verbs.StateRTS, verbs.StateSQD, verbs.StateErr},
		verbs.StateSQE:   {verbs.StateReset, verbs.StateRTS, verbs.StateErr},
		verbs.StateErr:   {verbs.StateReset, verbs.StateErr},
	}
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		for _, from := range all {
			for _, to := range all {
				want := false
				for _, s := range valid[from] {
					want = want || s == to
				}
				tr := transitions[states{from, to}]
				required, optional := tr.required.of(typ)|verbs.MaskState, tr.optional.of(typ)
				if got := transitionAllowed(from, to, typ, required); got != want {
					t.Errorf("%v: %v to %v: %v", typ, from, to, got)
				}
				if !want {
					continue
				}
				if !transitionAllowed(from, to, typ, required|optional&^verbs.MaskCurState) {
					t.Errorf("%v: %v to %v: not with optional attributes", typ, from, to)
				}
				for bit := verbs.MaskCurState; bit <= verbs.MaskDestQPNum; bit <<= 1 {
					if required&bit != 0 && transitionAllowed(from, to, typ, required&^bit) {
						t.Errorf("%v: %v to %v: allowed without %v", typ, from, to, bit)
					}
					if (required|optional)&bit == 0 && transitionAllowed(from, to, typ, required|bit) {
						t.Errorf("%v: %v to %v: allowed with %v", typ, from, to, bit)
					}
				}
			}
		}
	}
}

// TestModifyErrors sets attributes that are not valid.
func TestModifyErrors(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	x, y := n.newQP(verbs.RC), n.newQP(verbs.RC)
	good := x.attrs(y)
	const rtr = verbs.MaskState | maskRTR | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	toInit := func() {
		good.State = verbs.StateReset
		x.mustModify(good, verbs.MaskState)
		good.State = verbs.StateInit
		x.mustModify(good, verbs.MaskState|maskInit)
		good.State = verbs.StateRTR
	}
	for _, tt := range []struct {
		name   string
		change func(*verbs.QPAttr)
		mask   verbs.QPAttrMask
		err    error
	}{
		{"none", func(a *verbs.QPAttr) {}, rtr, nil},
		{"MTU 0", func(a *verbs.QPAttr) { a.PathMTU = 0 }, rtr, syscall.EINVAL},
		{"MTU 6", func(a *verbs.QPAttr) { a.PathMTU = 6 }, rtr, syscall.EINVAL},
		{"unknown GID", func(a *verbs.QPAttr) { a.AV.SGIDIndex = 5 }, rtr, host.ENODATA},
		{"no global route", func(a *verbs.QPAttr) { a.AV.Global = false }, rtr, syscall.EINVAL},
		{"too many READs", func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 129 }, rtr, syscall.EINVAL},
		{"alternate path", func(a *verbs.QPAttr) { a.AltAV = a.AV; a.AltPort = 1 }, rtr | verbs.MaskAltPath, syscall.EINVAL},
		{"access", func(a *verbs.QPAttr) { a.Access = 1 << 15 }, rtr | verbs.MaskAccess, syscall.EINVAL},
		{"unknown mask", func(a *verbs.QPAttr) {}, rtr | 1<<21, syscall.EOPNOTSUPP},
		{"state", func(a *verbs.QPAttr) { a.State = 7 }, rtr, syscall.EINVAL},
		{"to RTS", func(a *verbs.QPAttr) { a.State = verbs.StateRTS }, rtr, syscall.EINVAL},
		{"port without state", func(a *verbs.QPAttr) { a.Port = 2 }, verbs.MaskPort, syscall.EINVAL},
		{"timeout without state", func(a *verbs.QPAttr) { a.Timeout = 32 }, verbs.MaskTimeout, syscall.EINVAL},
	} {
		toInit()
		a := *good
		tt.change(&a)
		if err := x.Modify(&a, tt.mask); !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		want := verbs.StateInit
		if tt.err == nil {
			want = verbs.StateRTR
		}
		if s := x.Query().State; s != want {
			t.Errorf("%s: in %v", tt.name, s)
		}
	}
	if err := x.Doorbell(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("doorbell: %v", err)
	}
	z := n.newQP(verbs.RC) // in RESET, without a path
	if err := z.Modify(&verbs.QPAttr{CurState: verbs.StateRTS, State: verbs.StateRTS}, verbs.MaskState|verbs.MaskCurState); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTS without a path: %v", err)
	}
}

// TestOtherState states another state than that of a QP with requests in progress: neither are they numbered anew, nor does it
// leave ERR without a reset.
func TestOtherState(t *testing.T) {
	w := newWire(t, verbs.RC)
	w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Inline: []byte("12345678")})
	again := w.qp.attrs(w.qp, func(a *verbs.QPAttr) {
		a.State, a.CurState, a.SQPSN = verbs.StateRTS, verbs.StateRTR, wirePSN+5
	})
	mask := verbs.MaskState | verbs.MaskCurState | verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
	if err := w.qp.Modify(again, mask); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTS as if from RTR: %v", err)
	}
	w.qp.mustModify(&verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateRTS}, verbs.MaskState|verbs.MaskCurState)
	w.qp.mustModify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	if err := w.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateRTS}, verbs.MaskState|verbs.MaskCurState); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTS from ERR: %v", err)
	}
}

// TestEndAcknowledges ends a QP between the completion of a request and its acknowledgement, as a program may that was woken by
// the former: the peer would report what has been executed as failed.
func TestEndAcknowledges(t *testing.T) {
	for _, s := range []verbs.QPState{verbs.StateErr, verbs.StateReset} {
		w := newWire(t, verbs.RC)
		w.qp.postRecv(1, w.n.sge(0, 64))
		w.qp.lock() // as receiver.receive until answer
		w.qp.handle(&packet{src: addrB, dst: addrA, Packet: roce.Packet{
			Opcode: roce.RCSendOnly, PSN: wirePSN, AckReq: true, PKey: roce.DefaultPKey, DestQP: w.qp.Num(), Payload: []byte("abcd"),
		}})
		w.qp.unlock()
		w.n.rcq.expect(t, 1, verbs.WCSuccess)
		w.qp.mustModify(&verbs.QPAttr{State: s}, verbs.MaskState)
		w.expectAck(wirePSN, roce.ACKUnlimited)
	}
}

// TestModifyInUse changes, without a state, what requests in progress have been cut and numbered by.
func TestModifyInUse(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	x, y := n.newQP(verbs.RC), n.newQP(verbs.RC)
	x.connect(y)
	a := x.attrs(y)
	for _, mask := range []verbs.QPAttrMask{verbs.MaskPathMTU, verbs.MaskSQPSN, verbs.MaskRQPSN, verbs.MaskMaxRDAtomic, verbs.MaskMaxDestRDAtomic} {
		if err := x.Modify(a, mask); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("mask %#x: %v", mask, err)
		}
	}
	if err := x.Modify(a, verbs.MaskMinRNRTimer); err != nil {
		t.Error(err)
	}
}

// TestQuery queries what has been set.
func TestQuery(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	x, y := pair(n, n.sibling(64), verbs.RC, func(a *verbs.QPAttr) { a.MaxRDAtomic, a.MaxDestRDAtomic = 3, 5; a.MinRNRTimer = 12 })
	a := x.Query()
	gid, _ := n.dev.GID(0)
	if a.State != verbs.StateRTS || a.CurState != verbs.StateRTS || a.PathMTU != 3 || a.DestQPNum != y.Num() || a.RQPSN != 0xfffff0 || a.SQPSN != 0xfffff0 ||
		a.MaxRDAtomic != 4 || a.MaxDestRDAtomic != 8 || a.MinRNRTimer != 12 || a.Port != 1 || a.Timeout != 10 || a.RetryCount != 7 || a.RNRRetry != 7 ||
		a.AV.DGID != gid || a.Cap != x.Cap() || a.Access != verbs.AccessAll|verbs.AccessFlushGlobal {
		t.Errorf("%+v", a)
	}
	x.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite})
	if a, b := x.Query(), y.Query(); a.SQPSN != 0xfffff1 || b.RQPSN != 0xfffff1 {
		t.Errorf("PSNs %#x, %#x", a.SQPSN, b.RQPSN)
	}
}

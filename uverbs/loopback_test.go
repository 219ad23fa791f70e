//go:build linux

package uverbs_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

func send(t testing.TB, qp *uverbs.QP, wrs ...verbs.SendWR) {
	t.Helper()
	if n, err := qp.PostSend(wrs...); n != len(wrs) || err != nil {
		t.Fatalf("PostSend: %d of %d, %v", n, len(wrs), err)
	}
}

func recv(t testing.TB, qp *uverbs.QP, wrs ...verbs.RecvWR) {
	t.Helper()
	if n, err := qp.PostRecv(wrs...); n != len(wrs) || err != nil {
		t.Fatalf("PostRecv: %d of %d, %v", n, len(wrs), err)
	}
}

// next polls one completion, which must be successful.
func next(t testing.TB, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	wc := nextAny(t, cq)
	if err := wc.Err(); err != nil {
		t.Fatal(err)
	}
	return wc
}

func nextAny(t testing.TB, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if cq.Poll(wc[:]) == 1 {
			return wc[0]
		}
	}
	t.Fatal("no completion in 10 s")
	panic("unreachable")
}

func TestSendRecv(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{})
	copy(a.MR.Bytes(), "hello, peer")
	recv(t, b.QP, verbs.RecvWR{ID: 7, SGL: []verbs.SGE{b.MR.SGE(0, 100)}})
	send(t, a.QP, verbs.SendWR{ID: 8, Opcode: verbs.OpSendImm, Flags: verbs.SendSignaled, Imm: 0xcafe0001, SGL: []verbs.SGE{a.MR.SGE(0, 11)}})
	if wc := next(t, a.SendCQ); wc.ID != 8 || wc.Opcode != verbs.WCSend || wc.QPNum != a.QP.Num() {
		t.Errorf("send completion %+v", wc)
	}
	wc := next(t, b.RecvCQ)
	if wc.ID != 7 || wc.Opcode != verbs.WCRecv || wc.ByteLen != 11 || wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != 0xcafe0001 || wc.QPNum != b.QP.Num() {
		t.Errorf("receive completion %+v imm %#x", wc, wc.Imm())
	}
	if got := b.MR.Bytes()[:11]; !bytes.Equal(got, a.MR.Bytes()[:11]) {
		t.Errorf("received %q", got)
	}
}

func TestEvents(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{Events: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i := range 20 {
		recv(t, b.QP, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{b.MR.SGE(0, 64)}})
		go func() {
			time.Sleep(time.Millisecond)
			a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte{byte(i)}})
		}()
		var wc [4]verbs.WC
		n, err := b.RecvCQ.PollWait(ctx, wc[:])
		if n != 1 || err != nil || wc[0].ID != uint64(i) || b.MR.Bytes()[0] != byte(i) {
			t.Fatalf("round %d: %d completions, %v, %+v", i, n, err, wc[0])
		}
		if n, err := a.SendCQ.PollWait(ctx, wc[:]); n != 1 || err != nil {
			t.Fatalf("round %d: %d send completions, %v", i, n, err)
		}
	}
}

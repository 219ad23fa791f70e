//go:build linux

package uverbs_test

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
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

//go:build linux && !nordma

package uverbs_test

import (
	"runtime/debug"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/rdmatest"
)

// TestInlineFault posts inline data from memory that is unmapped, in a program that
// recovers from the fault: the queue can still be used.
func TestInlineFault(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 32}, All: true})
		unmapped := labtest.Must(mmap.NewBuffer(4096, mmap.BufferOptions{}))(t)
		wr := []verbs.SendWR{
			{ID: 1, Opcode: verbs.OpSend, Inline: []byte("first")}, {ID: 2, Opcode: verbs.OpSend, Inline: []byte("second")},
			{ID: 3, Opcode: verbs.OpSend, Inline: unmapped.Bytes()[:8]},
		}
		if err := unmapped.Close(); err != nil {
			t.Fatal(err)
		}
		func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				if recover() == nil {
					t.Error("data that is gone was sent")
				}
			}()
			a.QP.PostSend(wr...)
		}()
		// Of the list nothing is sent, now or with what follows.
		for id := uint64(4); id < 8; id++ {
			if _, err := b.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
			if n, err := a.QP.PostSend(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: []byte("all well")}); n != 1 || err != nil {
				t.Fatalf("posted %d: %v", n, err)
			}
			if wc := next(t, b.RecvCQ); wc.ID != id || wc.ByteLen != 8 || string(b.MR.Bytes()[:8]) != "all well" {
				t.Errorf("received %+v, %q", wc, b.MR.Bytes()[:8])
			}
			if wc := next(t, a.SendCQ); wc.ID != id || wc.Status != verbs.WCSuccess {
				t.Errorf("sent %+v, want %d", wc, id)
			}
		}
	})
}

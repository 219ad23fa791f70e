//go:build linux

package uverbs_test

import (
	"bytes"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

// TestPageEnd sends few bytes that are on two pages while the device is busy. siw would
// send some of them twice, and others not at all.
func TestPageEnd(t *testing.T) {
	labtest.RequireBoth(t)
	const page, large, few, sends = 4096, 1 << 20, 32, 16
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Memory: large + (sends+1)*page, Cap: verbs.QPCap{
			MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1,
		}})
		for i := range a.MR.Bytes() {
			a.MR.Bytes()[i] = byte(i*7 + i/page)
		}
		post := func(wrs ...verbs.SendWR) {
			t.Helper()
			if n, err := a.QP.PostSend(wrs...); n != len(wrs) || err != nil {
				t.Fatalf("posted %d: %v", n, err)
			}
		}
		for round := range labtest.Rounds(5, 1) {
			wrs := []verbs.SendWR{}
			for range 8 {
				wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, large)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
			}
			at := func(i int) int { return large + (i+1)*page - 1 - (i+round)%(few-1) }
			for i := range sends {
				if _, err := b.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{b.MR.SGE(large+i*page, few)}}); err != nil {
					t.Fatal(err)
				}
			}
			post(wrs...)
			for i := range sends {
				post(verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(at(i), few)}})
			}
			for i := range sends {
				wc := next(t, b.RecvCQ)
				got, want := b.MR.Bytes()[large+i*page:][:few], a.MR.Bytes()[at(i):][:few]
				if wc.ID != uint64(i) || !bytes.Equal(got, want) {
					t.Errorf("round %d, message %d, %d bytes before the end of a page: %x, want %x", round, i, large+(i+1)*page-at(i), got, want)
				}
				next(t, a.SendCQ)
			}
		}
	})
}

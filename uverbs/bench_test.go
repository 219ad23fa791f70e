//go:build linux

package uverbs_test

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

// BenchmarkPostRecv posts into a queue that is emptied by resetting the QP.
func BenchmarkPostRecv(b *testing.B) {
	const depth = 1023
	_, peer := labtest.NewPair(b, "", rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}})
	init := func() {
		for _, s := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
			mask := verbs.MaskState
			if s == verbs.StateInit {
				mask |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
			}
			if err := peer.QP.Modify(verbs.QPAttr{State: s, Port: 1}, mask); err != nil {
				b.Fatal(err)
			}
		}
	}
	wr := []verbs.RecvWR{{SGL: []verbs.SGE{peer.MR.SGE(0, 64)}}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := peer.QP.PostRecv(wr...); err == verbs.ErrQueueFull {
			b.StopTimer()
			init()
			b.StartTimer()
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPollEmpty(b *testing.B) {
	a, _ := labtest.NewPair(b, "", rdmatest.PairOptions{})
	var wcs [16]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		a.SendCQ.Poll(wcs[:])
	}
}

// BenchmarkWrite writes 8 bytes, in batches with one doorbell and one completion each,
// and waits for the completion.
func BenchmarkWrite(b *testing.B) {
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		for _, batch := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/batch=%d", device, batch), func(b *testing.B) { benchmarkWrite(b, device, batch) })
		}
	}
}

func benchmarkWrite(b *testing.B, device string, batch int) {
	a, peer := labtest.NewPair(b, device, rdmatest.PairOptions{})
	wrs := make([]verbs.SendWR, batch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: peer.MR.Addr(), RKey: peer.MR.RKey(), Inline: make([]byte, 8)}
	}
	wrs[batch-1].Flags = verbs.SendSignaled
	var wcs [16]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.QP.PostSend(wrs...); err != nil {
			b.Fatal(err)
		}
		for a.SendCQ.Poll(wcs[:]) == 0 {
		}
		if err := wcs[0].Err(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/write")
}

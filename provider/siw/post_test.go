//go:build linux

package siw

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// BenchmarkPost posts requests that need no doorbell.
func BenchmarkPost(b *testing.B) {
	const size = 512
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newFakeDevice(b)
			cq, _, err := h.createCQ(8)
			if err != nil {
				b.Fatal(err)
			}
			defer cq.Release()
			sq, rq, err := h.createQP(cq, size, size, verbs.QPCap{MaxSendSGE: 2})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { sq.Release(); rq.Release() }()
			wrs := make([]verbs.SendWR, n)
			for i := range wrs {
				wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: 1 << 20, Length: 64, LKey: 5}}}
			}
			sqeWord(sq.queue.at(sq.put - 1)).Store(word(abi.SIW_WQE_VALID, 0, 0))
			b.ReportAllocs()
			for b.Loop() {
				if got, err := sq.Post(wrs); got != n || err != nil {
					b.Fatal(got, err)
				}
				for i := range uint32(n) { // all but the last have been sent
					fillSqe(sq.queue.at(sq.put-2-i), 0)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		})
	}
}

// TestRoomNeverEmpty posts while the kernel takes only the oldest request of each queue: what
// is known of the taken ones must not fall behind, as places are counted with 32 bits.
func TestRoomNeverEmpty(t *testing.T) {
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Release()
	sq, rq, err := h.createQP(cq, 16, 16, verbs.QPCap{MaxSendSGE: 2, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { sq.Release(); rq.Release() }()
	sq.State, rq.State = verbs.StateRTS, verbs.StateRTS
	sqeWord(sq.queue.at(sq.put - 1)).Store(word(abi.SIW_WQE_VALID, 0, 0)) // no doorbell for the first
	size := uint32(sq.Cap())
	if size < 4 || int(size) != rq.Cap() {
		t.Fatalf("the queues hold %d and %d requests", size, rq.Cap())
	}
	for i := range 10 * size {
		s, serr := sq.Post([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend}})
		r, rerr := rq.Post(make([]verbs.RecvWR, 2))
		want := 2 // fill the queues
		if i >= size/2 {
			want = 1 // there is room for what has been taken, and no more
			if !errors.Is(serr, verbs.ErrQueueFull) || !errors.Is(rerr, verbs.ErrQueueFull) {
				t.Fatalf("round %d: %v, %v", i, serr, rerr)
			}
		}
		if s != want || r != want {
			t.Fatalf("round %d: posted %d sends (%v) and %d receives (%v), not %d", i, s, serr, r, rerr, want)
		}
		if sq.put-sq.taken > size || rq.put-rq.taken > size {
			t.Fatalf("round %d: of %d sends and %d receives the first %d and %d are known to be taken",
				i, sq.put, rq.put, sq.taken, rq.taken)
		}
		if i >= size/2-1 {
			sqeWord(sq.queue.at(sq.put - size)).Store(0)
			rqeWord(rq.queue.at(rq.put - size)).Store(0)
		}
	}
}

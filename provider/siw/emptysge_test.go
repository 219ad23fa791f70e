//go:build linux

package siw

import (
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
)

// TestEmptySGEs posts lists with empty elements, which would crash the kernel if it found
// them before others: the queues get the others only.
func TestEmptySGEs(t *testing.T) {
	const size = 8
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(size)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Release()
	sq, rq, err := h.createQP(cq, size, size, verbs.QPCap{MaxSendSGE: abi.SIW_MAX_SGE, MaxRecvSGE: abi.SIW_MAX_SGE})
	if err != nil {
		t.Fatal(err)
	}
	defer sq.Release()
	defer rq.Release()
	srq := newSRQ(rq.queue, provider.SRQInfo{MaxSGE: abi.SIW_MAX_SGE}, h.dev) // in the same memory
	rq.State = verbs.StateRTS
	rq.put = 1 // a message has used a receive: nudge is not needed

	some := func(addr uint64) verbs.SGE { return verbs.SGE{Addr: addr, Length: 100, LKey: 7} }
	few := verbs.SGE{Addr: 4096, Length: 4, LKey: 7}
	withKey, none := verbs.SGE{Addr: 1 << 20, LKey: 9}, verbs.SGE{}
	for _, test := range []struct {
		name  string
		posts []verbs.SGE
		gets  []verbs.SGE
		later []verbs.SGE // what a send that is not the first of a batch gets, if that is not the same
	}{
		{"first", []verbs.SGE{withKey, some(1)}, []verbs.SGE{some(1)}, nil},
		{"first, without a key", []verbs.SGE{none, some(1)}, []verbs.SGE{some(1)}, nil},
		{"in the middle", []verbs.SGE{some(1), withKey, none, some(2)}, []verbs.SGE{some(1), some(2)}, nil},
		{"last", []verbs.SGE{some(1), some(2), withKey}, []verbs.SGE{some(1), some(2)}, nil},
		{"all", []verbs.SGE{withKey, none}, nil, nil},
		{"all but few bytes", []verbs.SGE{none, few}, []verbs.SGE{few}, []verbs.SGE{few, none}},
	} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendInv, verbs.OpRDMAWrite} {
			sq.put, sq.taken = 0, 0
			for i := range uint32(size) {
				*sq.queue.at(i) = abi.SiwSqe{}
			}
			sqeWord(sq.queue.at(size - 1)).Store(word(abi.SIW_WQE_VALID, 0, 0)) // no doorbell
			wr := verbs.SendWR{Opcode: op, SGL: test.posts}
			if n, err := sq.Post([]verbs.SendWR{wr, wr}); n != 2 || err != nil {
				t.Fatalf("%s, %v: posted %d: %v", test.name, op, n, err)
			}
			want := test.gets
			for i := range uint32(2) {
				if sqe := sq.queue.at(i); !sgesEqual(sqe.Sge()[:sqe.NumSge], want) {
					t.Errorf("%s, %v, request %d: %+v, want %+v", test.name, op, i, sqe.Sge()[:sqe.NumSge], want)
				}
				if test.later != nil {
					want = test.later
				}
			}
		}
		for _, q := range []*recvQueue{rq, srq} {
			q.put, q.taken = 0, 0
			for i := range uint32(size) {
				*q.queue.at(i) = abi.SiwRqe{}
			}
			wr := verbs.RecvWR{SGL: test.posts}
			if n, err := q.Post([]verbs.RecvWR{wr, wr}); n != 2 || err != nil {
				t.Fatalf("%s, %s: posted %d: %v", test.name, q.Op, n, err)
			}
			for i := range uint32(2) {
				if rqe := q.queue.at(i); !sgesEqual(rqe.Sge[:rqe.NumSge], test.gets) {
					t.Errorf("%s, %s, request %d: %+v, want %+v", test.name, q.Op, i, rqe.Sge[:rqe.NumSge], test.gets)
				}
			}
		}
	}
}

func sgesEqual(got []abi.SiwSge, want []verbs.SGE) bool {
	return slices.EqualFunc(got, want, func(g abi.SiwSge, w verbs.SGE) bool {
		return g == abi.SiwSge{Laddr: w.Addr, Length: w.Length, Lkey: w.LKey}
	})
}

//go:build linux

package siw

import (
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// TestSecondSGE checks that requests that the kernel might send wrong get a second, empty
// SGE.
func TestSecondSGE(t *testing.T) {
	const size, page = 8, 16 << 12 // at least the system's
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(size)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Release()
	sq, rq, err := h.createQP(cq, size, size, verbs.QPCap{MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer sq.Release()
	defer rq.Release()
	rq.put = 1 // a message has used a receive: nudge is not needed
	sqes := unsafe.Slice((*abi.SiwSqe)(unsafe.Pointer(&h.file[queueSpace])), size)
	sqes[size-1].Flags = abi.SIW_WQE_VALID // the kernel is busy: no doorbell

	send := func(addr uint64, length uint32) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: addr, Length: length, LKey: 7}}}
	}
	read, write, inline := send(page, 8), send(page, 8), send(0, 0)
	read.Opcode, write.Opcode = verbs.OpRDMARead, verbs.OpRDMAWrite
	inline.SGL, inline.Inline = nil, make([]byte, 8)
	two := send(page, 8)
	two.SGL = append(two.SGL, two.SGL[0])
	for name, test := range map[string]struct {
		wr           verbs.SendWR
		first, later uint8 // SGEs
	}{
		"few":           {send(page, 8), 1, 2},
		"most of few":   {send(page, 32), 1, 2},
		"many":          {send(page, 33), 1, 1},
		"none":          {send(page, 0), 1, 1},
		"to a page end": {send(page-8, 8), 1, 2},
		"over it":       {send(page-7, 8), 2, 2},
		"many over it":  {send(page-7, 33), 1, 1},
		"of a WRITE":    {write, 1, 2},
		"of a READ":     {read, 1, 1},
		"inline":        {inline, 1, 1},
		"of two SGEs":   {two, 2, 2},
	} {
		sq.put = 0
		for i := range sqes[:size-1] {
			sqes[i] = abi.SiwSqe{}
			*sqes[i].Sge() = [abi.SIW_MAX_SGE]abi.SiwSge{1: {Laddr: 1, Length: 1, Lkey: 1}} // of an earlier request
		}
		if n, err := sq.Post([]verbs.SendWR{test.wr, test.wr, test.wr}); n != 3 || err != nil {
			t.Fatalf("%s: posted %d: %v", name, n, err)
		}
		for i, want := range []uint8{test.first, test.later, test.later} {
			sqe := &sqes[i]
			if sqe.NumSge != want {
				t.Errorf("%s, request %d: %d SGEs, want %d", name, i, sqe.NumSge, want)
			}
			if len(test.wr.SGL) != 1 {
				continue
			}
			if got, want := sqe.Sge()[0], test.wr.SGL[0]; got != (abi.SiwSge{Laddr: want.Addr, Length: want.Length, Lkey: want.LKey}) {
				t.Errorf("%s, request %d: %+v, want %+v", name, i, got, want)
			}
			if sqe.NumSge == 2 && sqe.Sge()[1] != (abi.SiwSge{}) {
				t.Errorf("%s, request %d: the second SGE is %+v", name, i, sqe.Sge()[1])
			}
		}
	}
}

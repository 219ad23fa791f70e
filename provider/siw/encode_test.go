//go:build linux

package siw

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// newQueues makes the queues of a QP in state RTS with room for 16 requests each, of a peer that has sent a message.
func newQueues(t *testing.T) (*fakeDevice, *completionQueue, *sendQueue, *recvQueue) {
	t.Helper()
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cq.Release)
	sq, rq, err := h.createQP(cq, 16, 16, verbs.QPCap{MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 48})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sq.Release)
	t.Cleanup(rq.Release)
	rq.put, rq.taken = 1, 1
	sq.size, rq.size = 16, 16
	sq.State, rq.State = verbs.StateRTS, verbs.StateRTS
	return h, cq, sq, rq
}

// TestEncodedSends compares elements of the queue with those that struct siw_sqe defines, for requests that are first in
// the queue, first in a batch, and neither.
func TestEncodedSends(t *testing.T) {
	const most = 1 << 30
	sge := verbs.SGE{Addr: 0x1122334455667788, Length: 100, LKey: 0xabcd}
	at := func(length uint32) []verbs.SGE { return []verbs.SGE{{Addr: 1 << 20, Length: length, LKey: 5}} }
	data := bytes.Repeat([]byte{1, 2, 3}, 16)
	const all = verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence
	const valid, marks, fence = abi.SIW_WQE_VALID, abi.SIW_WQE_SIGNALLED | abi.SIW_WQE_SOLICITED, abi.SIW_WQE_READ_FENCE
	for name, test := range map[string]struct {
		wr     verbs.SendWR
		flags  uint16
		opcode uint8
		rkey   bool
		addr   bool
		err    error
	}{
		"send":                   {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{sge}}, valid, abi.SIW_OP_SEND, false, false, nil},
		"send with flags":        {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{sge}, Flags: all &^ verbs.SendFence}, valid | marks, abi.SIW_OP_SEND, false, false, nil},
		"fenced send":            {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{sge}, Flags: all}, valid | marks | fence, abi.SIW_OP_SEND, false, false, nil},
		"send of three SGEs":     {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{sge, sge, sge}}, valid, abi.SIW_OP_SEND, false, false, nil},
		"send of four SGEs":      {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{sge, sge, sge, sge}}, err: verbs.ErrTooManySGEs},
		"send of nothing":        {verbs.SendWR{Opcode: verbs.OpSend}, valid, abi.SIW_OP_SEND, false, false, nil},
		"longest send":           {verbs.SendWR{Opcode: verbs.OpSend, SGL: at(most)}, valid, abi.SIW_OP_SEND, false, false, nil},
		"too long send":          {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(most + 1)}, err: verbs.ErrMessageTooLong},
		"too long send in parts": {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: append(at(most), at(1)...)}, err: verbs.ErrMessageTooLong},
		"send of a short SGE":    {verbs.SendWR{Opcode: verbs.OpSend, SGL: at(minSimple)}, valid, abi.SIW_OP_SEND, false, false, nil},
		"send and invalidate":    {verbs.SendWR{Opcode: verbs.OpSendInv, SGL: []verbs.SGE{sge}}, valid, abi.SIW_OP_SEND_REMOTE_INV, true, false, nil},
		"write":                  {verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{sge}}, valid, abi.SIW_OP_WRITE, true, true, nil},
		"write of two SGEs":      {verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{sge, sge}}, valid, abi.SIW_OP_WRITE, true, true, nil},
		"read":                   {verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{sge}}, valid, abi.SIW_OP_READ, true, true, nil},
		"fenced read":            {verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{sge}, Flags: all}, valid | marks, abi.SIW_OP_READ, true, true, nil},
		"read of nothing":        {verbs.SendWR{Opcode: verbs.OpRDMARead}, valid, abi.SIW_OP_READ, true, true, nil},
		"read of two SGEs":       {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{sge, sge}}, err: verbs.ErrTooManySGEs},
		"read and invalidate":    {verbs.SendWR{Opcode: verbs.OpRDMAReadInv, SGL: []verbs.SGE{sge}}, valid, abi.SIW_OP_READ_LOCAL_INV, true, true, nil},
		"invalidate":             {verbs.SendWR{Opcode: verbs.OpLocalInv}, valid, abi.SIW_OP_INVAL_STAG, true, false, nil},
		"invalidate with an SGE": {wr: verbs.SendWR{Opcode: verbs.OpLocalInv, SGL: []verbs.SGE{sge}}, err: verbs.ErrTooManySGEs},
		"send with immediate":    {wr: verbs.SendWR{Opcode: verbs.OpSendImm, SGL: []verbs.SGE{sge}}, err: verbs.ErrOpcode},
		"unknown":                {wr: verbs.SendWR{Opcode: 200, SGL: []verbs.SGE{sge}}, err: verbs.ErrOpcode},
		"nothing":                {wr: verbs.SendWR{SGL: []verbs.SGE{sge}}, err: verbs.ErrNoOpcode},
		"inline send":            {verbs.SendWR{Opcode: verbs.OpSend, Inline: data}, valid | abi.SIW_WQE_INLINE, abi.SIW_OP_SEND, false, false, nil},
		"inline send of a list":  {verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{data[:20], data[20:]}}}, valid | abi.SIW_WQE_INLINE, abi.SIW_OP_SEND, false, false, nil},
		"fenced inline write":    {verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: data, Flags: all}, valid | marks | fence | abi.SIW_WQE_INLINE, abi.SIW_OP_WRITE, true, true, nil},
		"too long inline send":   {wr: verbs.SendWR{Opcode: verbs.OpSend, Inline: append(data, 0)}, err: verbs.ErrInlineTooLong},
		"inline send with SGE":   {wr: verbs.SendWR{Opcode: verbs.OpSend, Inline: data, SGL: []verbs.SGE{sge}}, err: verbs.ErrInlineSGL},
		"inline read":            {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: data}, err: verbs.ErrInlineOp},
		"inline send and inv":    {wr: verbs.SendWR{Opcode: verbs.OpSendInv, Inline: data}, err: verbs.ErrInlineOp},
	} {
		for _, signalAll := range []bool{false, true} {
			h, _, sq, _ := newQueues(t)
			if signalAll {
				init := &provider.QPInit{SignalAll: true, Cap: verbs.QPCap{MaxSendSGE: 3}}
				other, err := newSendQueue(sq.queue, 16, init, provider.QPInfo{QPNum: 5, Cap: verbs.QPCap{MaxSendSGE: 3, MaxInline: 48}}, sq.dev)
				if err != nil {
					t.Fatal(err)
				}
				other.recv, other.State, sq = sq.recv, verbs.StateRTS, other
				test.flags |= abi.SIW_WQE_SIGNALLED
			}
			test.wr.ID, test.wr.RKey, test.wr.RemoteAddr = 0x99aabbccddeeff00, 0x77665544, 0x1234567890
			for i := range sq.queue.mask + 1 {
				*sq.queue.at(i).Sge() = [abi.SIW_MAX_SGE]abi.SiwSge{{Laddr: 1, Length: 1, Lkey: 1}}
			}
			for i := range 3 {
				if i == 1 { // from then on there is another path for simple requests
					sq.put, sq.taken = 2, 2
				}
				n, err := sq.Post([]verbs.SendWR{test.wr, test.wr})
				if refused, ok := errors.AsType[*verbs.PostError](err); test.err != nil && (n != 0 || !errors.Is(err, test.err) || !ok || refused.ID != test.wr.ID || refused.QPNum != 5) ||
					test.err == nil && (n != 2 || err != nil) {
					t.Fatalf("%s: posted %d: %v, want %v", name, n, err, test.err)
				}
			}
			if test.err != nil {
				if h.doorbells != 0 {
					t.Errorf("%s: %d doorbells", name, h.doorbells)
				}
				continue
			}
			for i := range uint32(6) {
				sqe := sq.queue.at(i)
				got := []any{sqe.Id, sqe.Flags, sqe.Opcode, int(sqe.NumSge)}
				want := []any{test.wr.ID, test.flags, test.opcode, len(test.wr.SGL)}
				if provider.HasInline(&test.wr) {
					want[3] = 1
					if text := mmap.Bytes(sqe.Sge())[16:][:len(data)]; !bytes.Equal(text, data) || sqe.Sge()[0] != (abi.SiwSge{Length: uint32(len(data))}) {
						t.Errorf("%s: inline data %v of %+v", name, text, sqe.Sge()[0])
					}
				} else if len(test.wr.SGL) == 0 && sqe.Sge()[0] != (abi.SiwSge{}) {
					t.Errorf("%s: SGE %+v of no data", name, sqe.Sge()[0])
				}
				if test.rkey {
					got, want = append(got, sqe.Rkey), append(want, test.wr.RKey)
				}
				if test.addr {
					got, want = append(got, *sqe.Raddr()), append(want, test.wr.RemoteAddr)
				}
				if !slices.Equal(got, want) || len(test.wr.SGL) > 0 && !sgesEqual(sqe.Sge()[:sqe.NumSge], test.wr.SGL) {
					t.Errorf("%s, request %d: %v %+v, want %v", name, i, got, sqe.Sge()[:sqe.NumSge], want)
				}
			}
		}
	}
}

// TestEncodedReceives compares elements of the queue with those that struct siw_rqe defines.
func TestEncodedReceives(t *testing.T) {
	sge := func(length uint32) verbs.SGE { return verbs.SGE{Addr: 1 << 40, Length: length, LKey: 9} }
	const most = 1 << 30
	for name, test := range map[string]struct {
		sgl []verbs.SGE
		err error
	}{
		"one SGE":            {[]verbs.SGE{sge(64)}, nil},
		"one byte":           {[]verbs.SGE{sge(1)}, nil},
		"no SGE":             {nil, nil},
		"three SGEs":         {[]verbs.SGE{sge(1), sge(2), sge(3)}, nil},
		"four SGEs":          {[]verbs.SGE{sge(1), sge(2), sge(3), sge(4)}, verbs.ErrTooManySGEs},
		"longest":            {[]verbs.SGE{sge(most)}, nil},
		"longest in parts":   {[]verbs.SGE{sge(most - 1), sge(1)}, nil},
		"too long":           {[]verbs.SGE{sge(most + 1)}, verbs.ErrMessageTooLong},
		"too long, in parts": {[]verbs.SGE{sge(most), sge(1)}, verbs.ErrMessageTooLong},
	} {
		h, _, _, rq := newQueues(t)
		srq := newSRQ(rq.queue, provider.SRQInfo{MaxSGE: 3}, h.dev)
		for _, q := range []*recvQueue{rq, srq} {
			*q.queue.at(q.put), *q.queue.at(q.put + 1) = abi.SiwRqe{}, abi.SiwRqe{}
			wrs := []verbs.RecvWR{{ID: 1 << 60, SGL: test.sgl}, {ID: 2, SGL: test.sgl}}
			n, err := q.Post(wrs)
			if test.err != nil {
				if refused, ok := errors.AsType[*verbs.PostError](err); n != 0 || !errors.Is(err, test.err) || !ok || refused.ID != 1<<60 {
					t.Errorf("%s: posted %d: %v, want %v", name, n, err, test.err)
				}
				continue
			}
			if n != 2 || err != nil {
				t.Fatalf("%s: posted %d: %v", name, n, err)
			}
			for i := range wrs {
				rqe := q.queue.at(q.put - 2 + uint32(i))
				if rqe.Id != wrs[i].ID || rqe.Flags != abi.SIW_WQE_VALID || rqe.Opcode != 0 || !sgesEqual(rqe.Sge[:rqe.NumSge], test.sgl) {
					t.Errorf("%s: receive %d: %+v", name, i, rqe)
				}
			}
		}
	}
}

// TestReceivesByState posts receives to a QP in each state, and more than there is room for.
func TestReceivesByState(t *testing.T) {
	_, cq, _, rq := newQueues(t)
	wrs := []verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{{Length: 1}}}, {ID: 8}}
	for _, s := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
		for i := range wrs { // simple, and not
			rq.State = s
			n, err := rq.Post(wrs[i:][:1])
			if s == verbs.StateReset && (n != 0 || !errors.Is(err, verbs.ErrState)) || s != verbs.StateReset && (n != 1 || err != nil) {
				t.Errorf("receive %d in %v: %d, %v", i, s, n, err)
			}
		}
	}
	if n, err := rq.Post(make([]verbs.RecvWR, 20)); n != 16-6 || err != verbs.ErrQueueFull {
		t.Errorf("posted %d of 20 beside 6: %v", n, err)
	}
	put := rq.put
	rq.State = verbs.StateErr
	if n, err := rq.Post(wrs); n != 2 || err != nil || rq.put != put {
		t.Errorf("posted %d in ERR: %v; %d are in the queue", n, err, rq.put-put)
	}
	var wcs [4]verbs.WC
	want := []verbs.WC{{ID: 7, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: 5}, {ID: 8, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: 5}}
	if n := provider.Poll(cq, wcs[:]); !slices.Equal(wcs[:n], want) {
		t.Errorf("%+v, want %+v", wcs[:n], want)
	}
	rq.State = verbs.StateRTS
	rq.Stop(true)
	if n, err := rq.Post(wrs); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("posted %d to a closed queue: %v", n, err)
	}
}

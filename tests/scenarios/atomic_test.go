package scenarios

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// atomicOp does an atomic operation on b's memory at an offset, with keys of the
// caller's choice, and checks the result.
func (e *env) atomicOp(op verbs.Opcode, a, b *rdmatest.Side, off int, sge verbs.SGE, rkey uint32) error {
	word := b.MR.Bytes()[off:][:8]
	binary.NativeEndian.PutUint64(word, 5)
	err := e.do(a, verbs.SendWR{
		Opcode: op, SGL: []verbs.SGE{sge}, RemoteAddr: b.MR.Addr() + uint64(off), RKey: rkey, Args: &verbs.SendArgs{CompareAdd: 5, Swap: 10},
	})
	if err != nil {
		return err
	}
	if was, is := binary.NativeEndian.Uint64(a.MR.Bytes()), binary.NativeEndian.Uint64(word); was != 5 || is != 10 {
		return fmt.Errorf("%d became %d", was, is)
	}
	return nil
}

func atomicTest(op verbs.Opcode) func(*env) error {
	return func(e *env) error {
		if e.siw {
			a, _ := e.pair(rdmatest.PairOptions{})
			return e.do(a, verbs.SendWR{Opcode: op, SGL: []verbs.SGE{a.MR.SGE(0, 8)}})
		}
		a, b := e.pair(rdmatest.PairOptions{})
		for i := range 20 {
			if err := e.atomicOp(op, a, b, 8*i, a.MR.SGE(0, 8), b.MR.RKey()); err != nil {
				return err
			}
		}
		return nil
	}
}

// atomicFails does an atomic operation with one wrong argument and expects a status.
func atomicFails(opt rdmatest.PairOptions, spoil func(a, b *rdmatest.Side) (off int, sge verbs.SGE, rkey uint32), want ...verbs.WCStatus) func(*env) error {
	return func(e *env) error {
		for _, op := range []verbs.Opcode{verbs.OpCompareSwap, verbs.OpFetchAdd} {
			if e.siw {
				return atomicTest(op)(e)
			}
			a, b := e.pair(opt)
			off, sge, rkey := spoil(a, b)
			if err := fails(e.atomicOp(op, a, b, off, sge, rkey), want...); err != nil {
				return fmt.Errorf("%v: %w", op, err)
			}
		}
		return nil
	}
}

func sound(a, b *rdmatest.Side) (int, verbs.SGE, uint32) { return 0, a.MR.SGE(0, 8), b.MR.RKey() }

var atomic = []scenario{
	{"atomic/atomic_cmp_and_swp", notOnSIW, atomicTest(verbs.OpCompareSwap)},
	{"atomic/atomic_fetch_and_add", notOnSIW, atomicTest(verbs.OpFetchAdd)},
	{"atomic/xrc_atomic_fetch_and_add", nowhere, probe("XRC domain")},
	{"atomic/xrc_atomic_cmp_and_swp", nowhere, probe("XRC domain")},
	{"atomic/atomic_invalid_qp_access", notOnSIW, atomicFails(rdmatest.PairOptions{
		RC: uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead},
	}, sound, verbs.WCRemInvReqErr)},
	{"atomic/atomic_invalid_mr_access", notOnSIW, atomicFails(rdmatest.PairOptions{
		Access: verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
	}, sound, verbs.WCRemAccessErr)},
	{"atomic/atomic_non_aligned_addr", notOnSIW, atomicFails(rdmatest.PairOptions{}, func(a, b *rdmatest.Side) (int, verbs.SGE, uint32) {
		return 3, a.MR.SGE(0, 8), b.MR.RKey()
	}, verbs.WCRemInvReqErr)},
	{"atomic/atomic_invalid_lkey", notOnSIW, atomicFails(rdmatest.PairOptions{}, func(a, b *rdmatest.Side) (int, verbs.SGE, uint32) {
		sge := a.MR.SGE(0, 8)
		sge.LKey ^= 0x5500
		return 0, sge, b.MR.RKey()
	}, verbs.WCLocProtErr)},
	{"atomic/atomic_invalid_rkey", notOnSIW, atomicFails(rdmatest.PairOptions{}, func(a, b *rdmatest.Side) (int, verbs.SGE, uint32) {
		return 0, a.MR.SGE(0, 8), b.MR.RKey() ^ 0x5500
	}, verbs.WCRemAccessErr)},
}

var srq = []scenario{
	{"srq/rc_srq_traffic", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{SRQ: true})
		return e.traffic(a, b, 50, 1000, false)
	}},
	{"srq/resize_srq", with("SRQ resize"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{SRQ: true})
		if err := b.SRQ.Resize(200); err != nil {
			return err
		}
		// Resize with a receive in it, which must remain.
		if _, err := b.PostRecv(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{b.MR.SGE(0, 10)}}); err != nil {
			return err
		}
		if err := b.SRQ.Resize(500); err != nil {
			return err
		}
		if got, err := b.SRQ.Query(); err != nil || got.MaxWR < 500 {
			return fmt.Errorf("query: %+v, %w", got, err)
		}
		if err := e.do(a, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}); err != nil {
			return err
		}
		if wc, err := e.wait(b.RecvCQ, false); err != nil || wc.ID != 9 {
			return fmt.Errorf("receive %+v, %w", wc, err)
		}
		return e.traffic(a, b, 10, 100, false)
	}},
	{"srq/modify_srq_limit", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{SRQ: true})
		for range 10 {
			if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 10)}}); err != nil {
				return err
			}
		}
		if err := b.SRQ.SetLimit(8); err != nil {
			return err
		}
		if got, err := b.SRQ.Query(); err != nil || got.Limit != 8 {
			return fmt.Errorf("query: %+v, %w", got, err)
		}
		for range 5 {
			if err := e.do(a, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}); err != nil {
				return err
			}
		}
		for ev, err := range b.PD.Context().AsyncEvents(timeout(e)) {
			if err != nil {
				return err
			}
			if ev.Type == verbs.EventSRQLimitReached {
				if ev.SRQ != b.SRQ {
					return errors.New("the event is another SRQ's")
				}
				break
			}
		}
		return nil
	}},
}

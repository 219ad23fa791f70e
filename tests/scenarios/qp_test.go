package scenarios

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// createQP creates a QP of a type and returns it in RESET.
func (e *env) createQP(typ verbs.QPType, want verbs.QPCap) (*uverbs.QP, error) {
	cq := labtest.Made(e.ctx.CreateCQ(uverbs.CQOptions{Depth: 64}))(e.t)
	qp, err := e.pd().CreateQP(uverbs.QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: want})
	if err != nil {
		return nil, err
	}
	labtest.Close(e.t, qp)
	c := qp.Cap()
	if c.MaxSendWR < want.MaxSendWR || c.MaxRecvWR < want.MaxRecvWR || c.MaxSendSGE < want.MaxSendSGE || c.MaxRecvSGE < want.MaxRecvSGE || c.MaxInline < want.MaxInline {
		return nil, fmt.Errorf("capacity %+v, asked for %+v", c, want)
	}
	return qp, nil
}

var smallCap = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 16}

func createQP(typ verbs.QPType) func(*env) error {
	return func(e *env) error {
		_, err := e.createQP(typ, smallCap)
		return err
	}
}

// createInit creates a QP and moves it to INIT, as rdma-core's "with attr" does.
func createInit(typ verbs.QPType) func(*env) error {
	return func(e *env) error {
		qp, err := e.createQP(typ, smallCap)
		if err != nil {
			return err
		}
		attr, mask := verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort
		if typ == verbs.UD {
			attr.QKey, mask = rdmatest.QKey, mask|verbs.MaskQKey
		} else {
			attr.Access, mask = e.access(), mask|verbs.MaskAccess
		}
		if err := qp.Modify(attr, mask); err != nil {
			return err
		}
		got, err := qp.Query()
		switch {
		case err != nil:
			return err
		case got.State != verbs.StateInit && !e.siw: // siw has no INIT
			return fmt.Errorf("in %v", got.State)
		case typ == verbs.UD && got.QKey != rdmatest.QKey:
			return fmt.Errorf("Q_Key %#x", got.QKey)
		case got.Cap.MaxSendWR < smallCap.MaxSendWR || got.Cap.MaxRecvSGE < smallCap.MaxRecvSGE:
			return fmt.Errorf("capacity %+v", got.Cap)
		}
		return nil
	}
}

// conservative is by how much a driver's limits are lower than what its queues take: those of the
// kernel's mlx5 are for the longest requests (mlx5_ib_calc_max_qp_wr), and its queues are limited
// by bytes.
var conservative = map[string]int{"mlx5": 4}

// illegal asks for one more than a limit.
func illegal(change func(c *verbs.QPCap, maxWR, maxSGE int)) func(*env) error {
	return func(e *env) error {
		c, factor := smallCap, cmp.Or(conservative[e.ctx.Driver()], 1)
		change(&c, factor*e.attr.MaxQPWR+1, factor*e.attr.MaxSGE+1)
		_, err := e.createQP(verbs.RC, c)
		return refused(err, unix.EINVAL, unix.ENOMEM)
	}
}

var qp = []scenario{
	{"qp/create_rc_qp_no_attr", everywhere, createQP(verbs.RC)},
	{"qp/create_uc_qp_no_attr", notOnSIW, createQP(verbs.UC)},
	{"qp/create_ud_qp_no_attr", notOnSIW, createQP(verbs.UD)},
	{"qp/create_raw_qp_no_attr", nowhere, createQP(abi.IB_UVERBS_QPT_RAW_PACKET)},
	{"qp/create_rc_qp_with_attr", everywhere, createInit(verbs.RC)},
	{"qp/create_uc_qp_with_attr", notOnSIW, createInit(verbs.UC)},
	{"qp/create_ud_qp_with_attr", notOnSIW, createInit(verbs.UD)},
	{"qp/create_raw_qp_with_attr", nowhere, createInit(abi.IB_UVERBS_QPT_RAW_PACKET)},
	{"qp/create_qp_with_illegal_caps_max_send_wr", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxSendWR = maxWR })},
	{"qp/create_qp_with_illegal_caps_max_send_sge", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxSendSGE = maxSGE })},
	{"qp/create_qp_with_illegal_caps_max_recv_sge", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxRecvSGE = maxSGE })},
	{"qp/create_qp_with_illegal_caps_max_recv_wr", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxRecvWR = maxWR })},
	{"qp/query_rc_qp", everywhere, createInit(verbs.RC)},
	{"qp/query_uc_qp", notOnSIW, createInit(verbs.UC)},
	{"qp/query_ud_qp", notOnSIW, createInit(verbs.UD)},
	{"qp/modify_ud_qp", notOnSIW, func(e *env) error {
		qp, err := e.createQP(verbs.UD, smallCap)
		if err != nil {
			return err
		}
		if err := qp.StartUD(1, rdmatest.QKey); err != nil {
			return err
		}
		if err := qp.Modify(verbs.QPAttr{QKey: 0x2222}, verbs.MaskQKey); err != nil {
			return err
		}
		if got, err := qp.Query(); err != nil || got.QKey != 0x2222 || got.State != verbs.StateRTS {
			return fmt.Errorf("%+v, %w", got, err)
		}
		return nil
	}},
	{"qp/modify_rc_qp_rd_atomic", notOnSIW, func(e *env) error {
		if e.siw { // negotiated when connecting
			return fmt.Errorf("siw: %w", errors.ErrUnsupported)
		}
		a, _ := e.pair(rdmatest.PairOptions{RC: uverbs.ConnectOptions{MaxRDAtomic: 8, MaxDestRDAtomic: 8}})
		got, err := a.QP.Query()
		if err == nil && (got.MaxRDAtomic != 8 || got.MaxDestRDAtomic != 8) {
			err = fmt.Errorf("%+v", got)
		}
		return err
	}},
}

// rdmaTest runs one opcode, as rdma-core's tests of ibv_wr_* do.
func rdmaTest(use func(e *env, a, b *rdmatest.Side) error) func(*env) error {
	return func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		return use(e, a, b)
	}
}

func sendOp(wr verbs.SendWR) func(*env) error {
	return rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		if _, err := b.PostRecv(verbs.RecvWR{ID: 4, SGL: []verbs.SGE{b.MR.SGE(0, 100)}}); err != nil {
			return err
		}
		wr.RemoteAddr, wr.RKey = b.MR.Addr(), b.MR.RKey()
		if err := e.do(a, wr); err != nil {
			return err
		}
		wc, err := e.wait(b.RecvCQ, false)
		if err == nil && (wc.ID != 4 || wc.Imm() != wr.Imm || int(wc.ByteLen) != len(wr.Inline)) {
			err = fmt.Errorf("receive %+v", wc)
		}
		return err
	})
}

func udSend(n int) func(*env) error { return func(e *env) error { return e.ud(false, n) } }

var qpEx = []scenario{
	{"qpex/qp_ex_ud_send", notOnSIW, udSend(700)},
	{"qpex/qp_ex_ud_zero_size", notOnSIW, udSend(0)},
	{"qpex/qp_ex_ud_send_imm", notOnSIW, udSend(8)},
	{"qpex/qp_ex_rc_send", everywhere, sendOp(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("send")})},
	{"qpex/qp_ex_rc_send_imm", notOnSIW, sendOp(verbs.SendWR{Opcode: verbs.OpSendImm, Inline: []byte("send"), Imm: 0x01020304})},
	{"qpex/qp_ex_xrc_send", nowhere, probe("XRC domain")},
	{"qpex/qp_ex_rc_flush", with("FLUSH"), func(e *env) error {
		if err := e.ctx.Probe(uverbs.FeatureFlush); err != nil {
			return err
		}
		access := e.access() | verbs.AccessFlushGlobal
		a, b := e.pair(rdmatest.PairOptions{Access: access, RC: uverbs.ConnectOptions{Access: access}})
		wrs := []verbs.SendWR{
			{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("flushed"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			{ID: 2, Opcode: verbs.OpFlush, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 7, Type: verbs.FlushGlobal}}},
		}
		if _, err := a.QP.PostSend(wrs...); err != nil {
			return err
		}
		for id := range uint64(2) {
			if wc, err := e.wait(a.SendCQ, false); err != nil || wc.ID != id+1 {
				return fmt.Errorf("%+v, %w", wc, err)
			}
		}
		if string(b.MR.Bytes()[:7]) != "flushed" {
			return errors.New("not written")
		}
		return nil
	}},
	{"qpex/qp_ex_rc_flush_type_violate", with("FLUSH"), func(e *env) error {
		if err := e.ctx.Probe(uverbs.FeatureFlush); err != nil {
			return err
		}
		a, b := e.pair(rdmatest.PairOptions{}) // its region does not allow FLUSH
		return fails(e.do(a, verbs.SendWR{
			Opcode: verbs.OpFlush, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 7, Type: verbs.FlushGlobal}},
		}), verbs.WCRemAccessErr, verbs.WCRemInvReqErr)
	}},
	{"qpex/qp_ex_rc_atomic_write", with("ATOMIC_WRITE"), rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		err := e.do(a, verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: []byte("8 bytes."), RemoteAddr: b.MR.Addr() + 8, RKey: b.MR.RKey()})
		if err == nil && string(b.MR.Bytes()[8:16]) != "8 bytes." {
			err = fmt.Errorf("%q was written", b.MR.Bytes()[8:16])
		}
		return err
	})},
	{"qpex/qp_ex_rc_rdma_write", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error { return e.write(a, b, 20000, b.MR.RKey()) })},
	{"qpex/qp_ex_rc_rdma_write_imm", notOnSIW, sendOp(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Inline: []byte("write"), Imm: 7})},
	{"qpex/qp_ex_rc_rdma_write_zero_size", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		return e.do(a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	})},
	{"qpex/qp_ex_rc_rdma_read", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error { return e.read(a, b, 20000, b.MR.RKey()) })},
	{"qpex/qp_ex_rc_rdma_read_zero_size", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		return e.do(a, verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	})},
	{"qpex/qp_ex_rc_atomic_cmp_swp", notOnSIW, atomicTest(verbs.OpCompareSwap)},
	{"qpex/qp_ex_rc_atomic_fetch_add", notOnSIW, atomicTest(verbs.OpFetchAdd)},
	{"qpex/qp_ex_rc_bind_mw", with("MW type 2"), window(verbs.MWType2, nil)},
	{"qpex/post_receive_qp_state_bad_flow", everywhere, func(e *env) error {
		qp, err := e.createQP(verbs.RC, smallCap)
		if err != nil {
			return err
		}
		_, err = qp.PostRecv(verbs.RecvWR{})
		return refused(err, verbs.ErrState)
	}},
	{"qpex/post_send_qp_state_bad_flow", everywhere, func(e *env) error {
		qp, err := e.createQP(verbs.RC, smallCap)
		if err != nil {
			return err
		}
		_, err = qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
		return refused(err, verbs.ErrState)
	}},
	{"qpex/full_rq_bad_flow", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		for range 1000 {
			if _, err := b.PostRecv(verbs.RecvWR{}); err != nil {
				return refused(err, verbs.ErrQueueFull)
			}
		}
		return errors.New("1000 receives fit")
	})},
	{"qpex/rq_with_larger_sgl_bad_flow", everywhere, rdmaTest(func(e *env, a, b *rdmatest.Side) error {
		_, err := b.PostRecv(verbs.RecvWR{SGL: make([]verbs.SGE, 5)})
		return refused(err, verbs.ErrTooManySGEs)
	})},
}

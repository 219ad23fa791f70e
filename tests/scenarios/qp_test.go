package scenarios

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
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

var smallCap = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}

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
			attr.QKey, mask = endpoint.QKey, mask|verbs.MaskQKey
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
		case got.State != verbs.StateInit && !e.ctx.Device().IWARP(): // which has no INIT
			return fmt.Errorf("in %v", got.State)
		case typ == verbs.UD && got.QKey != endpoint.QKey:
			return fmt.Errorf("Q_Key %#x", got.QKey)
		case got.Cap.MaxSendWR < smallCap.MaxSendWR || got.Cap.MaxRecvSGE < smallCap.MaxRecvSGE:
			return fmt.Errorf("capacity %+v", got.Cap)
		}
		return nil
	}
}

// conservative is by how much a driver's limits are lower than what its queues take: those of the
// kernel's mlx5 are for the longest requests (mlx5_ib_calc_max_qp_wr), and its queues are limited
// by bytes. erdma's is that of receives, and requests take six SGEs.
var conservative = map[string]int{"mlx5": 4, "erdma": 6}

// illegal asks for one more than a limit.
func illegal(change func(c *verbs.QPCap, maxWR, maxSGE int)) func(*env) error {
	return func(e *env) error {
		c, factor := smallCap, cmp.Or(conservative[e.ctx.Driver()], 1)
		change(&c, factor*e.attr.MaxQPWR+1, factor*e.attr.MaxSGE+1)
		_, err := e.createQP(verbs.RC, c)
		return refused(err, unix.EINVAL, unix.ENOMEM)
	}
}

var qp = []test{
	{"qp/create_rc_qp_no_attr", everywhere, createQP(verbs.RC)},
	{"qp/create_uc_qp_no_attr", with(uverbs.FeatureUC), createQP(verbs.UC)},
	{"qp/create_ud_qp_no_attr", with(uverbs.FeatureUD), createQP(verbs.UD)},
	{"qp/create_raw_qp_no_attr", nowhere, createQP(abi.IB_UVERBS_QPT_RAW_PACKET)},
	{"qp/create_rc_qp_with_attr", everywhere, createInit(verbs.RC)},
	{"qp/create_uc_qp_with_attr", with(uverbs.FeatureUC), createInit(verbs.UC)},
	{"qp/create_ud_qp_with_attr", with(uverbs.FeatureUD), createInit(verbs.UD)},
	{"qp/create_raw_qp_with_attr", nowhere, createInit(abi.IB_UVERBS_QPT_RAW_PACKET)},
	{"qp/create_qp_with_illegal_caps_max_send_wr", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxSendWR = maxWR })},
	{"qp/create_qp_with_illegal_caps_max_send_sge", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxSendSGE = maxSGE })},
	{"qp/create_qp_with_illegal_caps_max_recv_sge", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxRecvSGE = maxSGE })},
	{"qp/create_qp_with_illegal_caps_max_recv_wr", everywhere, illegal(func(c *verbs.QPCap, maxWR, maxSGE int) { c.MaxRecvWR = maxWR })},
	{"qp/query_rc_qp", everywhere, createInit(verbs.RC)},
	{"qp/query_uc_qp", with(uverbs.FeatureUC), createInit(verbs.UC)},
	{"qp/query_ud_qp", with(uverbs.FeatureUD), createInit(verbs.UD)},
	{"qp/modify_ud_qp", with(uverbs.FeatureUD), func(e *env) error {
		qp, err := e.createQP(verbs.UD, smallCap)
		if err != nil {
			return err
		}
		if err := qp.StartUD(1, endpoint.QKey); err != nil {
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
}

// refusedInReset returns an error unless a post was refused because of the QP's state. QPs of erdma have none
// on iWARP, and keep requests until the connection manager has connected them.
func (e *env) refusedInReset(err error) error {
	if err == nil && labtest.KeepsRequests(e.t, e.dev) {
		return nil
	}
	return refused(err, verbs.ErrState)
}

var qpEx = []test{
	{"qpex/post_receive_qp_state_bad_flow", everywhere, func(e *env) error {
		qp, err := e.createQP(verbs.RC, smallCap)
		if err != nil {
			return err
		}
		_, err = qp.PostRecv(verbs.RecvWR{})
		return e.refusedInReset(err)
	}},
	{"qpex/post_send_qp_state_bad_flow", everywhere, func(e *env) error {
		qp, err := e.createQP(verbs.RC, smallCap)
		if err != nil {
			return err
		}
		_, err = qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
		return e.refusedInReset(err)
	}},
}

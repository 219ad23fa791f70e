package faults

import (
	"errors"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const initMask = uverbs.MaskState | uverbs.MaskPKeyIndex | uverbs.MaskPort | uverbs.MaskAccess

// localProtection is a request that its own side found bad. Later kernels' rxe
// moves the QP to ERR before it reports the request, which flushes it with the
// others.
var localProtection = oneOf{uverbs.WCFlushErr, uverbs.WCLocProtErr, uverbs.WCLocQPOpErr}

var verbsCases = []verbsCase{
	{"open no such device", func(s *scene) error { return second(uverbs.Open("nosuch0")) }, uverbs.ErrNoDevice},
	{"open device without node", func(s *scene) error {
		return second(uverbs.Device{Name: "x", NodeErr: uverbs.ErrNoNode}.Open())
	}, uverbs.ErrNoNode},
	{"open what is no RDMA device", func(s *scene) error {
		return second(uverbs.Device{Name: "null", Node: "/dev/null"}.Open())
	}, unix.ENOTTY},

	{"MR of no bytes", func(s *scene) error { return second(s.pd.AllocMR(0, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of negative size", func(s *scene) error { return second(s.pd.AllocMR(-1, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of absurd size", func(s *scene) error { return second(s.pd.AllocMR(math.MaxInt&^4095, 0, uverbs.MROptions{})) }, unix.ENOMEM},
	{"MR of huge pages there are none of", func(s *scene) error {
		return second(s.pd.AllocMR(1<<30, 0, uverbs.MROptions{HugePages: true}))
	}, unix.ENOMEM},
	{"MR of empty memory", func(s *scene) error { return second(s.pd.RegisterMR(nil, 0)) }, unix.EINVAL},
	{"MR writable from remote only", func(s *scene) error {
		return second(s.pd.AllocMR(4096, uverbs.AccessRemoteWrite, uverbs.MROptions{}))
	}, unix.EINVAL},
	{"MR with absurd access", func(s *scene) error {
		return second(s.pd.AllocMR(4096, 1<<31|uverbs.AccessLocalWrite, uverbs.MROptions{}))
	}, unix.EINVAL},

	{"CQ of depth 0", func(s *scene) error { return second(s.ctx.CreateCQ(uverbs.CQOptions{})) }, unix.EINVAL},
	{"CQ of negative depth", func(s *scene) error { return second(s.ctx.CreateCQ(uverbs.CQOptions{Depth: -5})) }, unix.EINVAL},
	{"CQ deeper than the device's", func(s *scene) error {
		return second(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1 << 30}))
	}, unix.EINVAL},
	{"CQ on no such vector", func(s *scene) error {
		return second(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Vector: 4000}))
	}, unix.EINVAL},

	{"QP without CQs", func(s *scene) error { return second(s.pd.CreateQP(uverbs.QPOptions{})) }, unix.EINVAL},
	{"QP of no such type", func(s *scene) error {
		return second(s.pd.CreateQP(uverbs.QPOptions{Type: 77, SendCQ: s.cq, RecvCQ: s.cq}))
	}, unix.EINVAL},
	{"QP with a CQ of another context", func(s *scene) error {
		other := newScene(s.TB)
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: other.cq}))
	}, unix.EINVAL},
	{"QP with absurd send queue", func(s *scene) error {
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: uverbs.QPCap{MaxSendWR: 1 << 31}}))
	}, unix.EINVAL},
	{"QP with absurd receive queue", func(s *scene) error {
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: uverbs.QPCap{MaxRecvWR: 1 << 31}}))
	}, unix.EINVAL},
	{"QP with absurd SGEs", func(s *scene) error {
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: uverbs.QPCap{MaxSendSGE: 1000}}))
	}, unix.EINVAL},
	{"QP with absurd inline", func(s *scene) error {
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: uverbs.QPCap{MaxInline: 1 << 20}}))
	}, unix.EINVAL},

	{"port 0", func(s *scene) error { return second(s.ctx.QueryPort(0)) }, uverbs.ErrRange},
	{"no such port", func(s *scene) error { return second(s.ctx.QueryPort(99)) }, uverbs.ErrRange},
	{"P_Keys of no such port", func(s *scene) error { return second(s.ctx.PKeys(9)) }, uverbs.ErrRange},
	{"GID of foreign address", func(s *scene) error {
		return second(s.ctx.FindGID(1, netip.MustParseAddr("192.0.2.1")))
	}, uverbs.ErrRange},

	{"modify RESET to RTS", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: uverbs.StateRTS}, uverbs.MaskState|uverbs.MaskSQPSN)
	}, unix.EINVAL},
	{"modify to INIT without attributes", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: uverbs.StateInit}, uverbs.MaskState)
	}, unix.EINVAL},
	{"modify to INIT on no such port", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: uverbs.StateInit, Port: 9}, initMask)
	}, unix.EINVAL},
	{"modify to no such state", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: 99}, uverbs.MaskState)
	}, unix.EINVAL},
	{"modify with unknown mask", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: uverbs.StateInit, Port: 1}, initMask|1<<30)
	}, errors.ErrUnsupported},
	{"modify to RTR with absurd MTU", func(s *scene) error {
		s.state(uverbs.StateInit)
		e := labtest.Must(s.qp.Endpoint(1, 0))(s)
		return s.qp.Modify(uverbs.QPAttr{State: uverbs.StateRTR, PathMTU: 6, DestQPNum: e.QPNum, MaxDestRDAtomic: 1,
			AV: uverbs.AddressVector{Global: true, DGID: e.GID, SGIDIndex: e.GIDIndex, HopLimit: 64, Port: 1}},
			uverbs.MaskState|uverbs.MaskAV|uverbs.MaskPathMTU|uverbs.MaskDestQPNum|uverbs.MaskRQPSN|uverbs.MaskMaxDestRDAtomic|uverbs.MaskMinRNRTimer)
	}, unix.EINVAL},
	{"modify to RTR with no such GID index", func(s *scene) error {
		s.state(uverbs.StateInit)
		e := labtest.Must(s.qp.Endpoint(1, 0))(s)
		return s.qp.Modify(uverbs.QPAttr{State: uverbs.StateRTR, PathMTU: 3, DestQPNum: e.QPNum, MaxDestRDAtomic: 1,
			AV: uverbs.AddressVector{Global: true, DGID: e.GID, SGIDIndex: 200, HopLimit: 64, Port: 1}},
			uverbs.MaskState|uverbs.MaskAV|uverbs.MaskPathMTU|uverbs.MaskDestQPNum|uverbs.MaskRQPSN|uverbs.MaskMaxDestRDAtomic|uverbs.MaskMinRNRTimer)
	}, unix.ENODATA},

	{"post send in RESET", func(s *scene) error { return s.post(uverbs.SendWR{Opcode: uverbs.OpSend}) }, uverbs.ErrState},
	{"post send in INIT", func(s *scene) error {
		return s.state(uverbs.StateInit).post(uverbs.SendWR{Opcode: uverbs.OpSend})
	}, uverbs.ErrState},
	{"post send in RTR", func(s *scene) error {
		return s.state(uverbs.StateRTR).post(uverbs.SendWR{Opcode: uverbs.OpSend})
	}, uverbs.ErrState},
	{"post recv in RESET", func(s *scene) error { return s.postRecv(uverbs.RecvWR{}) }, uverbs.ErrState},
	{"send request without an opcode", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Inline: []byte("x")})
	}, uverbs.ErrNoOpcode},
	{"send with too many SGEs", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpSend, SGL: make([]uverbs.SGE, s.qp.Cap().MaxSendSGE+1)})
	}, uverbs.ErrTooManySGEs},
	{"receive with too many SGEs", func(s *scene) error {
		return s.rts().postRecv(uverbs.RecvWR{SGL: make([]uverbs.SGE, s.qp.Cap().MaxRecvSGE+1)})
	}, uverbs.ErrTooManySGEs},
	{"inline too long", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpSend, Inline: make([]byte, s.qp.Cap().MaxInline+1)})
	}, uverbs.ErrInlineTooLong},
	{"inline list too long", func(s *scene) error {
		half := make([]byte, s.qp.Cap().MaxInline/2+1)
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpSend, InlineList: [][]byte{half, half}})
	}, uverbs.ErrInlineTooLong},
	{"inline and SGL", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpSend, Inline: []byte("x"), SGL: []uverbs.SGE{s.mr.SGE(0, 1)}})
	}, uverbs.ErrInlineSGL},
	{"inline read", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpRDMARead, Inline: []byte("x")})
	}, uverbs.ErrInlineOp},
	{"message too long", func(s *scene) error {
		return s.rts().post(uverbs.SendWR{Opcode: uverbs.OpSend, SGL: []uverbs.SGE{{Length: 1 << 31}, {Length: 1}}})
	}, uverbs.ErrMessageTooLong},
	{"unknown opcode", func(s *scene) error { return s.rts().post(uverbs.SendWR{Opcode: 99}) }, uverbs.ErrOpcode},
	{"unknown opcode is unsupported", func(s *scene) error { return s.rts().post(uverbs.SendWR{Opcode: 99}) }, errors.ErrUnsupported},
	{"full send queue", func(s *scene) error {
		// Nobody receives, so the first send holds up all others.
		n := int(s.qp.Cap().MaxSendWR)
		got, err := s.rts().qp.PostSend(append(make([]uverbs.SendWR, 0, n+1), sendsOf(n+1)...))
		if got != n {
			s.Errorf("%d of %d were posted", got, n)
		}
		return err
	}, uverbs.ErrQueueFull},
	{"full receive queue", func(s *scene) error {
		n := int(s.qp.Cap().MaxRecvWR)
		got, err := s.rts().qp.PostRecv(make([]uverbs.RecvWR, n+3))
		if got != n {
			s.Errorf("%d of %d were posted", got, n)
		}
		return err
	}, uverbs.ErrQueueFull},
	{"batch with a bad request in the middle", func(s *scene) error {
		n, err := s.rts().qp.PostSend([]uverbs.SendWR{
			{Opcode: uverbs.OpRDMAWrite, Flags: uverbs.SendSignaled, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), Inline: []byte("a")},
			{ID: 7, Opcode: 99},
			{Opcode: uverbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), Inline: []byte("b")},
		})
		pe, ok := errors.AsType[*uverbs.PostError](err)
		if n != 1 || !ok || pe.Index != 1 || pe.ID != 7 || pe.QPNum != s.qp.Num() {
			s.Errorf("%d were posted, %+v", n, pe)
		}
		var wc [1]uverbs.WC
		for s.cq.Poll(wc[:]) == 0 {
		}
		if wc[0].Err() != nil || s.mr.Bytes()[0] != 'a' {
			s.Errorf("the request before it: %v", wc[0].Err())
		}
		return err
	}, uverbs.ErrOpcode},

	{"wrong lkey", func(s *scene) error {
		return s.rts().completes(uverbs.SendWR{Opcode: uverbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(),
			SGL: []uverbs.SGE{{Addr: s.mr.Addr(), Length: 64, LKey: s.mr.LKey() ^ 0xff}}})
	}, localProtection},
	{"SGE outside its region", func(s *scene) error {
		return s.rts().completes(uverbs.SendWR{Opcode: uverbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(),
			SGL: []uverbs.SGE{{Addr: s.mr.Addr() + 4090, Length: 64, LKey: s.mr.LKey()}}})
	}, localProtection},
	{"lkey of a closed region", func(s *scene) error {
		mr := s.region(uverbs.AccessAll)
		sge := mr.SGE(0, 64)
		s.rts().closed(mr)
		return s.completes(uverbs.SendWR{Opcode: uverbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), SGL: []uverbs.SGE{sge}})
	}, localProtection},
	{"wrong rkey", func(s *scene) error { return s.rts().write(s.mr.Addr(), s.mr.RKey()^0xff) }, uverbs.WCRemAccessErr},
	{"write outside the region", func(s *scene) error { return s.rts().write(s.mr.Addr()+4090, s.mr.RKey()) }, uverbs.WCRemAccessErr},
	{"write to a read-only region", func(s *scene) error {
		mr := s.region(uverbs.AccessRemoteRead)
		return s.rts().write(mr.Addr(), mr.RKey())
	}, uverbs.WCRemAccessErr},
	{"read of a write-only region", func(s *scene) error {
		mr := s.region(uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite)
		return s.rts().completes(uverbs.SendWR{Opcode: uverbs.OpRDMARead, RemoteAddr: mr.Addr(), RKey: mr.RKey(), SGL: []uverbs.SGE{s.mr.SGE(0, 8)}})
	}, uverbs.WCRemAccessErr},
	{"send with no receive posted", func(s *scene) error {
		return s.rts().completes(uverbs.SendWR{Opcode: uverbs.OpSend, Inline: []byte("x")})
	}, uverbs.WCRNRRetryExcErr},
	{"send longer than the receive, sender", func(s *scene) error {
		return s.rts().tooLong(s.qp)
	}, uverbs.WCRemOpErr},
	{"send longer than the receive, receiver", func(s *scene) error {
		return s.rts().tooLong(s.peer)
	}, uverbs.WCLocQPOpErr},
	{"post in ERR", func(s *scene) error {
		s.rts()
		if err := s.modify(uverbs.QPAttr{State: uverbs.StateErr}, uverbs.MaskState); err != nil {
			s.Fatal(err)
		}
		return s.completes(uverbs.SendWR{Opcode: uverbs.OpSend, Inline: []byte("x")})
	}, uverbs.WCFlushErr},

	{"arm a CQ without channel", func(s *scene) error { return s.cq.Arm(false) }, uverbs.ErrNoChannel},
	{"wait for a CQ without channel", func(s *scene) error { return s.cq.Wait(s.Context()) }, uverbs.ErrNoChannel},

	{"close a context in use", func(s *scene) error { return s.ctx.Close() }, uverbs.ErrInUse},
	{"close a PD in use", func(s *scene) error { return s.pd.Close() }, uverbs.ErrInUse},
	{"close a CQ in use", func(s *scene) error { return s.cq.Close() }, uverbs.ErrInUse},
	{"close a channel in use", func(s *scene) error {
		ch := labtest.Must(s.ctx.CreateCompChannel())(s)
		labtest.Close(s, ch)
		labtest.Close(s, labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Channel: ch}))(s))
		return ch.Close()
	}, uverbs.ErrInUse},
	{"send on a closed QP", func(s *scene) error { return s.rts().closed(s.qp).post(uverbs.SendWR{}) }, uverbs.ErrClosed},
	{"receive on a closed QP", func(s *scene) error { return s.rts().closed(s.qp).postRecv(uverbs.RecvWR{}) }, uverbs.ErrClosed},
	{"modify a closed QP", func(s *scene) error { return s.closed(s.qp).modify(uverbs.QPAttr{}, 0) }, uverbs.ErrClosed},
	{"query a closed QP", func(s *scene) error { return second(s.closed(s.qp).qp.Query()) }, uverbs.ErrClosed},
	{"QP on a closed CQ", func(s *scene) error {
		s.closed(s.qp, s.cq)
		return second(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: caps}))
	}, uverbs.ErrClosed},
	{"MR on a closed PD", func(s *scene) error {
		s.closed(s.qp, s.mr, s.pd)
		return second(s.pd.AllocMR(1, 0, uverbs.MROptions{}))
	}, uverbs.ErrClosed},
	{"PD on a closed context", func(s *scene) error {
		s.closed(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return second(s.ctx.AllocPD())
	}, os.ErrClosed},
	{"query of a closed context", func(s *scene) error {
		s.closed(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return second(s.ctx.QueryDevice())
	}, uverbs.ErrClosed},
	{"asynchronous event of a closed context", func(s *scene) error {
		s.closed(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return second(s.ctx.NextAsyncEvent(s.Context()))
	}, uverbs.ErrClosed},
}

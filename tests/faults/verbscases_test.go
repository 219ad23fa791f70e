package faults

import (
	"errors"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const initMask = verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess

// localProtection is the result of a request that the local side rejects. In later kernels
// rxe moves the QP to ERR before it reports the request, which is then flushed with the
// others.
var localProtection = oneOf{verbs.WCFlushErr, verbs.WCLocProtErr, verbs.WCLocQPOpErr}

var verbsCases = []verbsCase{
	{"open no such device", func(s *verbsEnv) error { return errOf(uverbs.Open("nosuch0")) }, verbs.ErrNoDevice},
	{"open device without node", func(s *verbsEnv) error {
		return errOf(uverbs.Device{Name: "x", NodeErr: verbs.ErrNoNode}.Open())
	}, verbs.ErrNoNode},
	{"open what is no RDMA device", func(s *verbsEnv) error {
		return errOf(uverbs.Device{Name: "null", Node: "/dev/null"}.Open())
	}, unix.ENOTTY},

	{"MR of no bytes", func(s *verbsEnv) error { return errOf(s.pd.AllocMR(0, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of negative size", func(s *verbsEnv) error { return errOf(s.pd.AllocMR(-1, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of absurd size", func(s *verbsEnv) error { return errOf(s.pd.AllocMR(math.MaxInt&^4095, 0, uverbs.MROptions{})) }, unix.ENOMEM},
	{"MR of huge pages there are none of", func(s *verbsEnv) error {
		return errOf(s.pd.AllocMR(1<<30, 0, uverbs.MROptions{PageSize: 2 << 20}))
	}, unix.ENOMEM},
	{"MR of empty memory", func(s *verbsEnv) error { return errOf(s.pd.RegisterMR(nil, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR writable from remote only", func(s *verbsEnv) error {
		return errOf(s.pd.AllocMR(4096, verbs.AccessRemoteWrite, uverbs.MROptions{}))
	}, unix.EINVAL},
	{"MR with absurd access", func(s *verbsEnv) error {
		return errOf(s.pd.AllocMR(4096, 1<<31|verbs.AccessLocalWrite, uverbs.MROptions{}))
	}, unix.EINVAL},

	{"CQ of depth 0", func(s *verbsEnv) error { return errOf(s.ctx.CreateCQ(uverbs.CQOptions{})) }, unix.EINVAL},
	{"CQ of negative depth", func(s *verbsEnv) error { return errOf(s.ctx.CreateCQ(uverbs.CQOptions{Depth: -5})) }, unix.EINVAL},
	{"CQ deeper than the device's", func(s *verbsEnv) error {
		return errOf(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1 << 30}))
	}, unix.EINVAL},
	{"CQ on no such vector", func(s *verbsEnv) error {
		return errOf(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Vector: 4000}))
	}, unix.EINVAL},

	{"QP without a receive CQ", func(s *verbsEnv) error { return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq})) }, unix.EINVAL},
	{"QP of no such type", func(s *verbsEnv) error {
		return errOf(s.pd.CreateQP(uverbs.QPOptions{Type: 77, SendCQ: s.cq, RecvCQ: s.cq}))
	}, oneOf{unix.EINVAL, errors.ErrUnsupported}},
	{"QP with a CQ of another context", func(s *verbsEnv) error {
		other := newVerbsEnv(s.TB)
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: other.cq}))
	}, unix.EINVAL},
	{"QP with absurd send queue", func(s *verbsEnv) error {
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: math.MaxInt32}}))
	}, unix.EINVAL},
	{"QP with absurd receive queue", func(s *verbsEnv) error {
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxRecvWR: math.MaxInt32}}))
	}, unix.EINVAL},
	{"QP with absurd SGEs", func(s *verbsEnv) error {
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendSGE: 1000}}))
	}, unix.EINVAL},
	{"QP with absurd inline", func(s *verbsEnv) error {
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxInline: 1 << 20}}))
	}, unix.EINVAL},

	{"port 0", func(s *verbsEnv) error { return errOf(s.ctx.QueryPort(0)) }, verbs.ErrRange},
	{"no such port", func(s *verbsEnv) error { return errOf(s.ctx.QueryPort(99)) }, verbs.ErrRange},
	{"P_Keys of no such port", func(s *verbsEnv) error { return errOf(s.ctx.PKeys(9)) }, verbs.ErrRange},
	{"GID of foreign address", func(s *verbsEnv) error {
		return errOf(s.ctx.FindGID(1, netip.MustParseAddr("192.0.2.1")))
	}, verbs.ErrRange},

	{"modify RESET to RTS", func(s *verbsEnv) error {
		return s.modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState|verbs.MaskSQPSN)
	}, unix.EINVAL},
	{"modify to INIT without attributes", func(s *verbsEnv) error {
		return s.modify(verbs.QPAttr{State: verbs.StateInit}, verbs.MaskState)
	}, unix.EINVAL},
	{"modify to INIT on no such port", func(s *verbsEnv) error {
		return s.modify(verbs.QPAttr{State: verbs.StateInit, Port: 9}, initMask)
	}, unix.EINVAL},
	{"modify to no such state", func(s *verbsEnv) error {
		return s.modify(verbs.QPAttr{State: 99}, verbs.MaskState)
	}, unix.EINVAL},
	{"modify with unknown mask", func(s *verbsEnv) error {
		return s.modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, initMask|1<<30)
	}, errors.ErrUnsupported},
	{"modify to RTR with absurd MTU", func(s *verbsEnv) error {
		s.state(verbs.StateInit)
		e := labtest.Must(s.qp.Addr(1))(s)
		return s.qp.Modify(verbs.QPAttr{State: verbs.StateRTR, PathMTU: 6, DestQPNum: e.QPNum, MaxDestRDAtomic: 1,
			AV: e.PathFrom(e)},
			verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPNum|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	}, unix.EINVAL},
	{"modify to RTR with no such GID index", func(s *verbsEnv) error {
		s.state(verbs.StateInit)
		e := labtest.Must(s.qp.Addr(1))(s)
		return s.qp.Modify(verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: e.QPNum, MaxDestRDAtomic: 1,
			AV: verbs.AddressVector{Global: true, DGID: e.GID, SGIDIndex: 200, HopLimit: 64, Port: 1}},
			verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPNum|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	}, oneOf{unix.ENODATA, unix.EINVAL}},

	{"post send in RESET", func(s *verbsEnv) error { return s.post(verbs.SendWR{Opcode: verbs.OpSend}) }, verbs.ErrState},
	{"post send in INIT", func(s *verbsEnv) error {
		return s.state(verbs.StateInit).post(verbs.SendWR{Opcode: verbs.OpSend})
	}, verbs.ErrState},
	{"post send in RTR", func(s *verbsEnv) error {
		return s.state(verbs.StateRTR).post(verbs.SendWR{Opcode: verbs.OpSend})
	}, verbs.ErrState},
	{"post recv in RESET", func(s *verbsEnv) error { return s.postRecv(verbs.RecvWR{}) }, verbs.ErrState},
	{"send request without an opcode", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Inline: []byte("x")})
	}, verbs.ErrNoOpcode},
	{"send with too many SGEs", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, s.qp.Cap().MaxSendSGE+1)})
	}, verbs.ErrTooManySGEs},
	{"receive with too many SGEs", func(s *verbsEnv) error {
		return s.rts().postRecv(verbs.RecvWR{SGL: make([]verbs.SGE, s.qp.Cap().MaxRecvSGE+1)})
	}, verbs.ErrTooManySGEs},
	{"inline too long", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, s.qp.Cap().MaxInline+1)})
	}, verbs.ErrInlineTooLong},
	{"inline list too long", func(s *verbsEnv) error {
		half := make([]byte, s.qp.Cap().MaxInline/2+1)
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{half, half}}})
	}, verbs.ErrInlineTooLong},
	{"inline and SGL", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x"), SGL: []verbs.SGE{s.mr.SGE(0, 1)}})
	}, verbs.ErrInlineSGL},
	{"inline read", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: []byte("x")})
	}, verbs.ErrInlineOp},
	{"message too long", func(s *verbsEnv) error {
		return s.rts().post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 1 << 31}, {Length: 1}}})
	}, verbs.ErrMessageTooLong},
	{"unknown opcode", func(s *verbsEnv) error { return s.rts().post(verbs.SendWR{Opcode: 99}) }, verbs.ErrOpcode},
	{"unknown opcode is unsupported", func(s *verbsEnv) error { return s.rts().post(verbs.SendWR{Opcode: 99}) }, errors.ErrUnsupported},
	{"full send queue", func(s *verbsEnv) error {
		// No receive is posted, so the first send blocks all others.
		n := int(s.qp.Cap().MaxSendWR)
		got, err := s.rts().qp.PostSend(append(make([]verbs.SendWR, 0, n+1), sendsOf(n+1)...)...)
		if got != n {
			s.Errorf("%d of %d were posted", got, n)
		}
		return err
	}, verbs.ErrQueueFull},
	{"full receive queue", func(s *verbsEnv) error {
		n := int(s.qp.Cap().MaxRecvWR)
		got, err := s.rts().qp.PostRecv(make([]verbs.RecvWR, n+3)...)
		if got != n {
			s.Errorf("%d of %d were posted", got, n)
		}
		return err
	}, verbs.ErrQueueFull},
	{"batch with a bad request in the middle", func(s *verbsEnv) error {
		n, err := s.rts().qp.PostSend([]verbs.SendWR{
			{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), Inline: []byte("a")},
			{ID: 7, Opcode: 99},
			{Opcode: verbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), Inline: []byte("b")},
		}...)
		pe, ok := errors.AsType[*verbs.PostError](err)
		if n != 1 || !ok || pe.Index != 1 || pe.ID != 7 || pe.QPNum != s.qp.Num() {
			s.Errorf("%d were posted, %+v", n, pe)
		}
		var wc [1]verbs.WC
		for s.cq.Poll(wc[:]) == 0 {
		}
		if wc[0].Err() != nil || s.mr.Bytes()[0] != 'a' {
			s.Errorf("the request before it: %v", wc[0].Err())
		}
		return err
	}, verbs.ErrOpcode},

	{"wrong lkey", func(s *verbsEnv) error {
		return s.rts().postAndWait(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(),
			SGL: []verbs.SGE{{Addr: s.mr.Addr(), Length: 64, LKey: s.mr.LKey() ^ 0xff}}})
	}, localProtection},
	{"SGE outside its region", func(s *verbsEnv) error {
		return s.rts().postAndWait(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(),
			SGL: []verbs.SGE{{Addr: s.mr.Addr() + 4090, Length: 64, LKey: s.mr.LKey()}}})
	}, localProtection},
	{"lkey of a closed region", func(s *verbsEnv) error {
		mr := s.region(verbs.AccessAll)
		sge := mr.SGE(0, 64)
		s.rts().closeTwice(mr)
		return s.postAndWait(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), SGL: []verbs.SGE{sge}})
	}, localProtection},
	{"wrong rkey", func(s *verbsEnv) error { return s.rts().write(s.mr.Addr(), s.mr.RKey()^0xff) }, verbs.WCRemAccessErr},
	{"write outside the region", func(s *verbsEnv) error { return s.rts().write(s.mr.Addr()+4090, s.mr.RKey()) }, verbs.WCRemAccessErr},
	{"write to a read-only region", func(s *verbsEnv) error {
		mr := s.region(verbs.AccessRemoteRead)
		return s.rts().write(mr.Addr(), mr.RKey())
	}, verbs.WCRemAccessErr},
	{"read of a write-only region", func(s *verbsEnv) error {
		mr := s.region(verbs.AccessLocalWrite | verbs.AccessRemoteWrite)
		return s.rts().postAndWait(verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: mr.Addr(), RKey: mr.RKey(), SGL: []verbs.SGE{s.mr.SGE(0, 8)}})
	}, verbs.WCRemAccessErr},
	{"send with no receive posted", func(s *verbsEnv) error {
		return s.rts().postAndWait(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")})
	}, verbs.WCRNRRetryExcErr},
	{"send longer than the receive, sender", func(s *verbsEnv) error {
		return s.rts().tooLong(s.qp)
	}, oneOf{verbs.WCRemOpErr, verbs.WCRemInvReqErr}}, // rxe's, and that of the InfiniBand Architecture
	{"send longer than the receive, receiver", func(s *verbsEnv) error {
		return s.rts().tooLong(s.peer)
	}, oneOf{verbs.WCLocQPOpErr, verbs.WCLocLenErr}},
	{"post in ERR", func(s *verbsEnv) error {
		s.rts()
		if err := s.modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); err != nil {
			s.Fatal(err)
		}
		return s.postAndWait(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")})
	}, verbs.WCFlushErr},

	{"arm a CQ without channel", func(s *verbsEnv) error { return s.cq.Arm(false) }, verbs.ErrNoChannel},
	{"wait for a CQ without channel", func(s *verbsEnv) error { return s.cq.Wait(s.Context()) }, verbs.ErrNoChannel},

	{"close a context in use", func(s *verbsEnv) error { return s.ctx.Close() }, verbs.ErrInUse},
	{"close a PD in use", func(s *verbsEnv) error { return s.pd.Close() }, verbs.ErrInUse},
	{"close a CQ in use", func(s *verbsEnv) error { return s.cq.Close() }, verbs.ErrInUse},
	{"close a channel in use", func(s *verbsEnv) error {
		ch := labtest.Made(s.ctx.CreateCompChannel())(s)
		labtest.Close(s, labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Channel: ch}))(s))
		return ch.Close()
	}, verbs.ErrInUse},
	{"send on a closed QP", func(s *verbsEnv) error { return s.rts().closeTwice(s.qp).post(verbs.SendWR{}) }, verbs.ErrClosed},
	{"receive on a closed QP", func(s *verbsEnv) error { return s.rts().closeTwice(s.qp).postRecv(verbs.RecvWR{}) }, verbs.ErrClosed},
	{"modify a closed QP", func(s *verbsEnv) error { return s.closeTwice(s.qp).modify(verbs.QPAttr{}, 0) }, verbs.ErrClosed},
	{"query a closed QP", func(s *verbsEnv) error { return errOf(s.closeTwice(s.qp).qp.Query()) }, verbs.ErrClosed},
	{"QP on a closed CQ", func(s *verbsEnv) error {
		s.closeTwice(s.qp, s.cq)
		return errOf(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: caps}))
	}, verbs.ErrClosed},
	{"MR on a closed PD", func(s *verbsEnv) error {
		s.closeTwice(s.qp, s.mr, s.pd)
		return errOf(s.pd.AllocMR(1, 0, uverbs.MROptions{}))
	}, verbs.ErrClosed},
	{"PD on a closed context", func(s *verbsEnv) error {
		s.closeTwice(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return errOf(s.ctx.AllocPD())
	}, os.ErrClosed},
	{"query of a closed context", func(s *verbsEnv) error {
		s.closeTwice(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return errOf(s.ctx.QueryDevice())
	}, verbs.ErrClosed},
	{"asynchronous event of a closed context", func(s *verbsEnv) error {
		s.closeTwice(s.qp, s.mr, s.pd, s.cq, s.ctx)
		return errOf(s.ctx.NextAsyncEvent(s.Context()))
	}, verbs.ErrClosed},
}

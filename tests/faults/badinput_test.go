package faults

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// scene is what a case works on; it is made anew for each.
type scene struct {
	testing.TB
	ctx *uverbs.Context
	pd  *uverbs.PD
	cq  *uverbs.CQ
	mr  *uverbs.MR
	qp  *uverbs.QP

	peer *uverbs.QP // of a QP in RTS
}

var caps = uverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

func newScene(t testing.TB) *scene {
	ctx := labtest.Open(t)
	s := &scene{TB: t, ctx: ctx, pd: labtest.Must(ctx.AllocPD())(t)}
	labtest.Close(t, s.pd)
	s.cq = labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 100}))(t)
	labtest.Close(t, s.cq)
	s.mr = labtest.Must(s.pd.AllocMR(4096, uverbs.AccessAll, uverbs.MROptions{}))(t)
	labtest.Close(t, s.mr)
	s.qp = s.newQP(uverbs.QPOptions{})
	return s
}

func (s *scene) newQP(opt uverbs.QPOptions) *uverbs.QP {
	opt.SendCQ, opt.RecvCQ, opt.Cap = s.cq, s.cq, caps
	qp := labtest.Must(s.pd.CreateQP(opt))(s)
	labtest.Close(s, qp)
	return qp
}

// state moves the QP to a state on its way to itself as the peer.
func (s *scene) state(st uverbs.QPState) *scene {
	e := labtest.Must(s.qp.Endpoint(1, 0))(s)
	steps := []struct {
		attr uverbs.QPAttr
		mask uverbs.QPAttrMask
	}{
		{uverbs.QPAttr{State: uverbs.StateInit, Port: 1, Access: uverbs.AccessAll},
			uverbs.MaskState | uverbs.MaskPKeyIndex | uverbs.MaskPort | uverbs.MaskAccess},
		{uverbs.QPAttr{State: uverbs.StateRTR, PathMTU: 3, DestQPNum: e.QPNum, MaxDestRDAtomic: 1, MinRNRTimer: 1,
			AV: uverbs.AddressVector{Global: true, DGID: e.GID, SGIDIndex: e.GIDIndex, HopLimit: 64, Port: 1}},
			uverbs.MaskState | uverbs.MaskAV | uverbs.MaskPathMTU | uverbs.MaskDestQPNum | uverbs.MaskRQPSN | uverbs.MaskMaxDestRDAtomic | uverbs.MaskMinRNRTimer},
	}
	for _, step := range steps[:st] {
		if err := s.qp.Modify(step.attr, step.mask); err != nil {
			s.Fatal(err)
		}
	}
	return s
}

// rts connects the QP to another, as a failing request takes both ends down
// with it. That retries little: one timeout of 1 ms, one of receivers not ready.
func (s *scene) rts() *scene {
	s.peer = s.newQP(uverbs.QPOptions{})
	mine, theirs := labtest.Must(s.qp.Endpoint(1, 0))(s), labtest.Must(s.peer.Endpoint(1, 0))(s)
	opt := uverbs.ConnectOptions{Timeout: 8, RetryCount: 1, RNRRetry: 1, MinRNRTimer: 1}
	if err := errors.Join(s.qp.Connect(mine, theirs, opt), s.peer.Connect(theirs, mine, opt)); err != nil {
		s.Fatal(err)
	}
	return s
}

func (s *scene) post(wrs ...uverbs.SendWR) error {
	_, err := s.qp.PostSend(wrs)
	return err
}

func (s *scene) postRecv(wrs ...uverbs.RecvWR) error {
	_, err := s.qp.PostRecv(wrs)
	return err
}

func second[T any](_ T, err error) error { return err }

// completes posts a request, and returns how it ended.
func (s *scene) completes(wr uverbs.SendWR) error {
	wr.Flags |= uverbs.SendSignaled
	if err := s.post(wr); err != nil {
		s.Fatal(err)
	}
	var wc [1]uverbs.WC
	for s.cq.Poll(wc[:]) == 0 || wc[0].QPNum != s.qp.Num() {
	}
	return wc[0].Err()
}

func (s *scene) write(addr uint64, rkey uint32) error {
	return s.completes(uverbs.SendWR{Opcode: uverbs.OpRDMAWrite, RemoteAddr: addr, RKey: rkey, SGL: []uverbs.SGE{s.mr.SGE(0, 64)}})
}

// tooLong sends more than was asked for, and returns how that ended for qp.
func (s *scene) tooLong(qp *uverbs.QP) error {
	if _, err := s.peer.PostRecv([]uverbs.RecvWR{{ID: 5, SGL: []uverbs.SGE{s.mr.SGE(0, 8)}}}); err != nil {
		s.Fatal(err)
	}
	if err := s.post(uverbs.SendWR{ID: 6, Opcode: uverbs.OpSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{s.mr.SGE(0, 64)}}); err != nil {
		s.Fatal(err)
	}
	var wc [1]uverbs.WC
	for s.cq.Poll(wc[:]) == 0 || wc[0].QPNum != qp.Num() {
	}
	return wc[0].Err()
}

func (s *scene) region(access uverbs.Access) *uverbs.MR {
	mr := labtest.Must(s.pd.AllocMR(4096, access, uverbs.MROptions{}))(s)
	labtest.Close(s, mr)
	return mr
}

func (s *scene) modify(attr uverbs.QPAttr, mask uverbs.QPAttrMask) error {
	return s.qp.Modify(attr, mask)
}

// closed closes c and whatever stands on it, which the scene's own cleanup
// does again: closing twice is no error.
func (s *scene) closed(c ...interface{ Close() error }) *scene {
	for _, c := range c {
		if err := c.Close(); err != nil {
			s.Fatal(err)
		}
		if err := c.Close(); err != nil {
			s.Fatalf("second Close: %v", err)
		}
	}
	return s
}

const initMask = uverbs.MaskState | uverbs.MaskPKeyIndex | uverbs.MaskPort | uverbs.MaskAccess

// rxe moves the QP to ERR before it reports a request that its own side found
// bad, which flushes that request with the others.
const localProtection = uverbs.WCFlushErr

var verbsCases = []struct {
	name string
	run  func(*scene) error
	want error
}{
	{"open no such device", func(s *scene) error { return second(uverbs.Open("nosuch0")) }, uverbs.ErrNoDevice},
	{"open device without node", func(s *scene) error {
		return second(uverbs.Device{Name: "x", NodeErr: uverbs.ErrNoNode}.Open())
	}, uverbs.ErrNoNode},
	{"open what is no RDMA device", func(s *scene) error {
		return second(uverbs.Device{Name: "null", Node: "/dev/null"}.Open())
	}, unix.ENOTTY},

	{"MR of no bytes", func(s *scene) error { return second(s.pd.AllocMR(0, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of negative size", func(s *scene) error { return second(s.pd.AllocMR(-1, 0, uverbs.MROptions{})) }, unix.EINVAL},
	{"MR of absurd size", func(s *scene) error { return second(s.pd.AllocMR(1<<46, 0, uverbs.MROptions{})) }, unix.ENOMEM},
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
	{"modify to INIT with absurd access", func(s *scene) error {
		return s.modify(uverbs.QPAttr{State: uverbs.StateInit, Port: 1, Access: 1 << 30}, initMask)
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
	}, uverbs.ErrInlineSGL},
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

func sendsOf(n int) []uverbs.SendWR {
	wrs := make([]uverbs.SendWR, n)
	for i := range wrs {
		wrs[i] = uverbs.SendWR{Opcode: uverbs.OpSend, Inline: []byte("x")}
	}
	return wrs
}

// TestBadVerbs gives bad input of every kind to uverbs.
func TestBadVerbs(t *testing.T) {
	labtest.Require(t)
	pass := func(t *testing.T) {
		for _, c := range verbsCases {
			t.Run(c.name, func(t *testing.T) {
				err := c.run(newScene(t))
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				t.Log(err)
			})
		}
	}
	twice(t, pass)
}

// twice runs pass at least twice and takes an inventory each time, which must
// not grow. Anonymous memory may grow as the runtime warms up, but a leak makes
// it grow every time.
func twice(t *testing.T, pass func(*testing.T)) {
	before := inventory(t)
	for n := range 5 {
		t.Run(fmt.Sprint(n), pass)
		sameInventory(t, before)
		now := inventory(t)[anonymous]
		if n > 0 && now <= before[anonymous] {
			return
		}
		before[anonymous] = now
	}
	t.Errorf("%s grew with every pass", anonymous)
}

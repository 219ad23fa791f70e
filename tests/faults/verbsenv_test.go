package faults

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// verbsEnv is the environment of a case; each case has a new one.
type verbsEnv struct {
	testing.TB
	ctx *uverbs.Context
	pd  *uverbs.PD
	cq  *uverbs.CQ
	mr  *uverbs.MR
	qp  *uverbs.QP

	peer *uverbs.QP // of a QP in RTS
}

var caps = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

func newVerbsEnv(t testing.TB) *verbsEnv {
	ctx := labtest.Open(t)
	s := &verbsEnv{TB: t, ctx: ctx, pd: labtest.Must(ctx.AllocPD())(t)}
	labtest.Close(t, s.pd)
	s.cq = labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 100}))(t)
	s.mr = labtest.Made(s.pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{}))(t)
	s.qp = s.newQP(uverbs.QPOptions{})
	return s
}

func (s *verbsEnv) newQP(opt uverbs.QPOptions) *uverbs.QP {
	opt.SendCQ, opt.RecvCQ, opt.Cap = s.cq, s.cq, caps
	qp := labtest.Made(s.pd.CreateQP(opt))(s)
	return qp
}

// state moves the QP to a state, as far as RTR, with itself as the peer.
func (s *verbsEnv) state(st verbs.QPState) *verbsEnv {
	e := labtest.Must(s.qp.Addr(1))(s)
	steps := []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
			verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess},
		{verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: e.QPNum, MaxDestRDAtomic: 1, MinRNRTimer: 1,
			AV: e.PathFrom(e)},
			verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer},
	}
	for _, step := range steps[:st] {
		if err := s.qp.Modify(step.attr, step.mask); err != nil {
			s.Fatal(err)
		}
	}
	return s
}

// rts connects the QP to another one, as a failing request takes both ends down. It retries
// once after a timeout of 1 ms, and once if the receiver is not ready.
func (s *verbsEnv) rts() *verbsEnv {
	s.peer = s.newQP(uverbs.QPOptions{})
	mine, theirs := labtest.Must(s.qp.Addr(1))(s), labtest.Must(s.peer.Addr(1))(s)
	opt := uverbs.ConnectOptions{Access: verbs.AccessAll, Timeout: 8, RetryCount: 1, RNRRetry: 1, MinRNRTimer: 1}
	if err := errors.Join(s.qp.Connect(mine, theirs, opt), s.peer.Connect(theirs, mine, opt)); err != nil {
		s.Fatal(err)
	}
	return s
}

func (s *verbsEnv) post(wrs ...verbs.SendWR) error {
	_, err := s.qp.PostSend(wrs...)
	return err
}

func (s *verbsEnv) postRecv(wrs ...verbs.RecvWR) error {
	_, err := s.qp.PostRecv(wrs...)
	return err
}

func errOf[T any](_ T, err error) error { return err }

// postAndWait posts a request, and returns the error of its completion.
func (s *verbsEnv) postAndWait(wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if err := s.post(wr); err != nil {
		s.Fatal(err)
	}
	var wc [1]verbs.WC
	for s.cq.Poll(wc[:]) == 0 || wc[0].QPNum != s.qp.Num() {
	}
	return wc[0].Err()
}

func (s *verbsEnv) write(addr uint64, rkey uint32) error {
	return s.postAndWait(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: addr, RKey: rkey, SGL: []verbs.SGE{s.mr.SGE(0, 64)}})
}

// tooLong sends more than the receive holds, and returns the error of qp's completion.
func (s *verbsEnv) tooLong(qp *uverbs.QP) error {
	if _, err := s.peer.PostRecv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{s.mr.SGE(0, 8)}}); err != nil {
		s.Fatal(err)
	}
	if err := s.post(verbs.SendWR{ID: 6, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{s.mr.SGE(0, 64)}}); err != nil {
		s.Fatal(err)
	}
	var wc [1]verbs.WC
	for s.cq.Poll(wc[:]) == 0 || wc[0].QPNum != qp.Num() {
	}
	return wc[0].Err()
}

func (s *verbsEnv) region(access verbs.Access) *uverbs.MR {
	mr := labtest.Made(s.pd.AllocMR(4096, access, uverbs.MROptions{}))(s)
	return mr
}

func (s *verbsEnv) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	return s.qp.Modify(attr, mask)
}

// closeTwice closes the objects of c. The cleanup of the test closes them again: closing twice
// is no error.
func (s *verbsEnv) closeTwice(c ...interface{ Close() error }) *verbsEnv {
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

type verbsCase struct {
	name string
	run  func(*verbsEnv) error
	want error
}

func sendsOf(n int) []verbs.SendWR {
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}
	}
	return wrs
}

// oneOf is a list of errors. Each kernel returns one of them.
type oneOf []error

func (oneOf) Error() string { return "one of several errors" }

func (c verbsCase) got(err error) bool {
	if of, ok := c.want.(oneOf); ok {
		return slices.ContainsFunc(of, func(w error) bool { return errors.Is(err, w) })
	}
	return errors.Is(err, c.want)
}

// TestBadVerbs passes bad input of every kind to uverbs.
func TestBadVerbs(t *testing.T) {
	labtest.RequireKernel(t)
	pass := func(t *testing.T) {
		for _, c := range verbsCases {
			t.Run(c.name, func(t *testing.T) {
				err := c.run(newVerbsEnv(t))
				if !c.got(err) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				t.Log(err)
			})
		}
	}
	checkNoGrowth(t, pass)
}

// checkNoGrowth runs pass at least twice and takes an inventory each time, which must not grow.
// Anonymous memory may grow while the runtime warms up, but a leak makes it grow every time.
func checkNoGrowth(t *testing.T, pass func(*testing.T)) {
	before := labtest.SettledInventory(t)
	for n := range 5 {
		t.Run(fmt.Sprint(n), pass)
		labtest.CheckLeaks(t, before)
		now := labtest.Inventory(t)[labtest.Anonymous]
		if n > 0 && now <= before[labtest.Anonymous] {
			return
		}
		before[labtest.Anonymous] = now
	}
	t.Errorf("%s grew with every pass", labtest.Anonymous)
}

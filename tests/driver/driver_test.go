package softroce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"example.com/softroce"
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/uverbs"
)

// open opens the lab's rxe device. It skips the test outside the lab.
func open(t testing.TB) *uverbs.Context {
	t.Helper()
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
	return must(uverbs.Open("rxe0"))(t)
}

// must returns v, which is closed at the end of the test. It fails the test if err is not nil.
func must[T interface{ Close() error }](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		t.Cleanup(func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// released checks, after the test has closed everything, that the driver has released it.
func released(t *testing.T) {
	t.Cleanup(func() {
		if n := softroce.Live(); n != 0 {
			t.Errorf("%d contexts, objects and queues are not released", n)
		}
	})
}

func shortContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// side is a QP with all objects that it needs.
type side struct {
	pd *uverbs.PD
	mr *uverbs.MR
	cq *uverbs.CQ
	qp *uverbs.QP
}

func newSide(t testing.TB, ctx *uverbs.Context, typ verbs.QPType, srq func(*uverbs.PD) *uverbs.SRQ) *side {
	t.Helper()
	s := &side{pd: must(ctx.AllocPD())(t)}
	s.mr = must(s.pd.AllocMR(1<<16, verbs.AccessAll, uverbs.MROptions{}))(t)
	channel := must(ctx.CreateCompChannel())(t)
	s.cq = must(ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: channel}))(t)
	opt := uverbs.QPOptions{Type: typ, SendCQ: s.cq, RecvCQ: s.cq}
	if srq != nil {
		opt.SRQ = srq(s.pd)
	}
	s.qp = must(s.pd.CreateQP(opt))(t)
	return s
}

func connect(t testing.TB, a, b *side) {
	t.Helper()
	addr := func(s *side) verbs.QPAddr {
		v, err := s.qp.Addr(1)
		check(t, err)
		return v
	}
	at, bt := addr(a), addr(b)
	check(t, a.qp.Connect(at, bt, uverbs.ConnectOptions{Access: verbs.AccessAll}))
	check(t, b.qp.Connect(bt, at, uverbs.ConnectOptions{Access: verbs.AccessAll}))
}

func (s *side) post(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if n, err := s.qp.PostSend(wr); n != 1 || err != nil {
		t.Fatalf("posted %d: %v", n, err)
	}
}

// next waits for a completion, which must be that of a request.
func (s *side) next(t testing.TB, id uint64, op verbs.WCOpcode) verbs.WC {
	t.Helper()
	wc, err := s.cq.Next(shortContext(t))
	check(t, err)
	if wc.ID != id || wc.Opcode != op || wc.QPNum != s.qp.Num() {
		t.Fatalf("completion %+v, want request %d, %v", wc, id, op)
	}
	return wc
}

// TestReplaces opens both devices of the lab with drivers that replace the built-in
// ones.
func TestReplaces(t *testing.T) {
	released(t)
	ctx := open(t)
	siw := must(uverbs.Open("siw0"))(t)
	if ctx.Driver() != "softroce" || siw.Driver() != "failing" {
		t.Errorf("drivers %q, %q", ctx.Driver(), siw.Driver())
	}
	imported := must(uverbs.ImportContext(ctx.FD()))(t)
	if imported.Driver() != "softroce" || softroce.Live() != 2 {
		t.Errorf("imported: driver %q, %d contexts", imported.Driver(), softroce.Live())
	}
	pd := must(ctx.AllocPD())(t)
	if err := ctx.Close(); !errors.Is(err, verbs.ErrInUse) {
		t.Errorf("close with a PD: %v", err)
	}
	if _, err := pd.CreateQP(uverbs.QPOptions{Type: verbs.UC, SendCQ: cq(t, ctx), RecvCQ: cq(t, ctx)}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a QP that the driver refuses: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second driver was registered for rxe")
		}
	}()
	provider.Register(softroce.Driver{})
}

func cq(t *testing.T, ctx *uverbs.Context) *uverbs.CQ {
	return must(ctx.CreateCQ(uverbs.CQOptions{Depth: 1}))(t)
}

// TestRC sends, writes and reads between two QPs.
func TestRC(t *testing.T) {
	released(t)
	ctx := open(t)
	a, b := newSide(t, ctx, verbs.RC, nil), newSide(t, ctx, verbs.RC, nil)
	if _, err := a.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("post before connecting: %v", err)
	}
	connect(t, a, b)
	receive := func(id uint64) {
		t.Helper()
		if n, err := b.qp.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.mr.SGE(0, 4096)}}); n != 1 || err != nil {
			t.Fatalf("posted %d receives: %v", n, err)
		}
	}

	before := softroce.Events()
	check(t, b.cq.Arm(false))
	receive(1)
	a.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Inline: []byte("hello "), Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("wor"), []byte("ld")}}})
	a.next(t, 2, verbs.WCSend)
	check(t, b.cq.Wait(shortContext(t)))
	if softroce.Events() == before {
		t.Error("the driver counted no event")
	}
	if wc := b.next(t, 1, verbs.WCRecv); string(b.mr.Bytes()[:wc.ByteLen]) != "hello world" {
		t.Errorf("received %q", b.mr.Bytes()[:wc.ByteLen])
	}

	for i := range a.mr.Bytes()[:8192] {
		a.mr.Bytes()[i] = byte(i % 251)
	}
	data := a.mr.Bytes()[:8192]
	a.post(t, verbs.SendWR{
		ID: 3, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, 4096), a.mr.SGE(4096, 4096)},
		RemoteAddr: b.mr.Addr() + 100, RKey: b.mr.RKey(),
	})
	a.next(t, 3, verbs.WCRDMAWrite)
	if !bytes.Equal(b.mr.Bytes()[100:8292], data) {
		t.Error("written data differs")
	}
	a.post(t, verbs.SendWR{
		ID: 4, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.mr.SGE(16384, 8192)},
		RemoteAddr: b.mr.Addr() + 100, RKey: b.mr.RKey(),
	})
	a.next(t, 4, verbs.WCRDMARead)
	if !bytes.Equal(a.mr.Bytes()[16384:24576], data) {
		t.Error("read data differs")
	}

	receive(5)
	a.post(t, verbs.SendWR{
		ID: 6, Opcode: verbs.OpRDMAWriteImm, Imm: 0x01020304, SGL: []verbs.SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	a.next(t, 6, verbs.WCRDMAWrite)
	if wc := b.next(t, 5, verbs.WCRecvRDMAImm); wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != 0x01020304 {
		t.Errorf("immediate %#x, flags %v", wc.Imm(), wc.Flags)
	}

	binary.NativeEndian.PutUint64(b.mr.Bytes()[64:], 40)
	a.post(t, verbs.SendWR{
		ID: 7, Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 2}, SGL: []verbs.SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(),
	})
	a.next(t, 7, verbs.WCFetchAdd)
	if old, now := binary.NativeEndian.Uint64(a.mr.Bytes()), binary.NativeEndian.Uint64(b.mr.Bytes()[64:]); old != 40 || now != 42 {
		t.Errorf("atomic: was %d, is %d", old, now)
	}

	for what, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"no opcode":     {verbs.SendWR{}, verbs.ErrNoOpcode},
		"refused":       {verbs.SendWR{Opcode: verbs.OpFlush}, verbs.ErrOpcode},
		"inline, long":  {verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 1<<17)}, verbs.ErrInlineTooLong},
		"inline, twice": {verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte{1}, SGL: []verbs.SGE{a.mr.SGE(0, 1)}}, verbs.ErrInlineSGL},
	} {
		n, err := a.qp.PostSend(c.wr)
		if e, ok := errors.AsType[*verbs.PostError](err); n != 0 || !ok || e.QPNum != a.qp.Num() || !errors.Is(err, c.want) {
			t.Errorf("%s: posted %d: %v", what, n, err)
		}
	}

	// Closed objects return ErrClosed.
	c := newSide(t, ctx, verbs.RC, nil)
	for _, close := range []func() error{c.qp.Close, c.cq.Close} {
		check(t, close())
	}
	_, sent := c.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
	_, received := c.qp.PostRecv(verbs.RecvWR{})
	for what, err := range map[string]error{"send": sent, "receive": received, "arm": c.cq.Arm(false), "resize": c.cq.Resize(8)} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if n := c.cq.Poll(make([]verbs.WC, 1)); n != 0 || c.cq.Cap() == 0 {
		t.Errorf("%d completions after close, of %d", n, c.cq.Cap())
	}

	// Requests that are posted to a QP in the error state are flushed.
	check(t, b.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
	receive(8)
	if wc, err := b.cq.Next(shortContext(t)); wc.ID != 8 || !errors.Is(err, verbs.WCFlushErr) {
		t.Errorf("completion %d: %v", wc.ID, err)
	}
}

// TestResize resizes a CQ with completions in it.
func TestResize(t *testing.T) {
	released(t)
	ctx := open(t)
	a, b := newSide(t, ctx, verbs.RC, nil), newSide(t, ctx, verbs.RC, nil)
	connect(t, a, b)
	const count = 20
	for id := range uint64(count) {
		a.post(t, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	}
	a.next(t, 0, verbs.WCRDMAWrite)
	check(t, a.cq.Resize(500))
	if a.cq.Cap() < 500 {
		t.Errorf("CQ of %d", a.cq.Cap())
	}
	for id := uint64(1); id < count; id++ {
		a.next(t, id, verbs.WCRDMAWrite)
	}
	check(t, a.cq.Resize(32))
	a.post(t, verbs.SendWR{ID: count, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	a.next(t, count, verbs.WCRDMAWrite)
}

// TestSRQ receives from an SRQ, which is resized and has a limit.
func TestSRQ(t *testing.T) {
	released(t)
	ctx := open(t)
	var srq *uverbs.SRQ
	a := newSide(t, ctx, verbs.RC, nil)
	b := newSide(t, ctx, verbs.RC, func(pd *uverbs.PD) *uverbs.SRQ {
		srq = must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4}))(t)
		return srq
	})
	connect(t, a, b)
	if _, err := b.qp.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrSRQ) {
		t.Errorf("receive posted to the QP: %v", err)
	}
	check(t, srq.Resize(100))
	const count = 50
	for id := range uint64(count) {
		if n, err := srq.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.mr.SGE(int(id), 1)}}); n != 1 || err != nil {
			t.Fatalf("posted %d: %v", n, err)
		}
	}
	check(t, srq.SetLimit(count))
	for id := range uint64(count) {
		a.post(t, verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: []byte{byte(id + 1)}})
		a.next(t, id, verbs.WCSend)
		b.next(t, id, verbs.WCRecv)
	}
	for i, v := range b.mr.Bytes()[:count] {
		if int(v) != i+1 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	e, err := ctx.NextAsyncEvent(shortContext(t))
	if check(t, err); e.Type != verbs.EventSRQLimitReached {
		t.Errorf("event %v", e)
	}
}

// TestUD sends a datagram and answers it.
func TestUD(t *testing.T) {
	released(t)
	ctx := open(t)
	const qkey = 0x11111111
	a, b := newSide(t, ctx, verbs.UD, nil), newSide(t, ctx, verbs.UD, nil)
	check(t, a.qp.StartUD(1, qkey))
	check(t, b.qp.StartUD(1, qkey))
	for _, s := range []*side{a, b} {
		if n, err := s.qp.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.mr.SGE(0, 4096)}}); n != 1 || err != nil {
			t.Fatalf("posted %d: %v", n, err)
		}
	}
	from, err := a.qp.Addr(1)
	check(t, err)
	to, err := b.qp.Addr(1)
	check(t, err)
	ah := must(a.pd.CreateAH(to.PathFrom(from)))(t)
	a.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpSendImm, Imm: 7, Inline: []byte("ping"), To: ah.To(b.qp.Num(), qkey)})
	a.next(t, 2, verbs.WCSend)
	wc := b.next(t, 1, verbs.WCRecv)
	if got := b.mr.Bytes()[verbs.GRHSize:wc.ByteLen]; string(got) != "ping" || wc.SrcQP != a.qp.Num() || wc.Imm() != 7 {
		t.Errorf("received %q, %+v", got, wc)
	}
	reply := must(b.pd.CreateReplyAH(1, &wc, b.mr.Bytes()[:verbs.GRHSize]))(t)
	b.post(t, verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Inline: []byte("pong"), To: reply.To(wc.SrcQP, qkey)})
	b.next(t, 3, verbs.WCSend)
	if wc := a.next(t, 1, verbs.WCRecv); string(a.mr.Bytes()[verbs.GRHSize:wc.ByteLen]) != "pong" {
		t.Errorf("answer %q", a.mr.Bytes()[:wc.ByteLen])
	}
}

// TestConcurrent posts to one QP from several goroutines, with inline data of their own,
// and polls from all of them.
func TestConcurrent(t *testing.T) {
	released(t)
	ctx := open(t)
	a, b := newSide(t, ctx, verbs.RC, nil), newSide(t, ctx, verbs.RC, nil)
	connect(t, a, b)
	const goroutines, posts = 4, 200
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range posts {
				var data [8]byte
				binary.NativeEndian.PutUint64(data[:], uint64(i))
				for {
					n, err := a.qp.PostSend(verbs.SendWR{
						ID: uint64(g), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: data[:],
						RemoteAddr: b.mr.Addr() + uint64(8*g), RKey: b.mr.RKey(),
					})
					if n == 1 {
						break
					}
					if !errors.Is(err, verbs.ErrQueueFull) {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
				}
				if _, err := a.cq.Next(shortContext(t)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	for g := range goroutines {
		if v := binary.NativeEndian.Uint64(b.mr.Bytes()[8*g:]); v != posts-1 {
			t.Errorf("goroutine %d wrote %d last", g, v)
		}
	}
}

// TestAllocations posts and polls with requests built in the call: they do not escape,
// although they pass through an interface.
func TestAllocations(t *testing.T) {
	released(t)
	ctx := open(t)
	a, b := newSide(t, ctx, verbs.RC, nil), newSide(t, ctx, verbs.RC, nil)
	connect(t, a, b)
	message := []byte("inline")
	if n := testing.AllocsPerRun(200, func() {
		if n, err := b.qp.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.SGE(0, 64)}}); n != 1 {
			t.Fatal(err)
		}
		n, err := a.qp.PostSend(
			verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
			verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: message},
		)
		if n != 2 {
			t.Fatal(err)
		}
		for _, cq := range []*uverbs.CQ{a.cq, b.cq} {
			for {
				var wcs [4]verbs.WC
				if n := cq.Poll(wcs[:]); n > 0 {
					if wcs[0].Status != verbs.WCSuccess {
						t.Fatal(wcs[0].Err())
					}
					break
				}
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkPost measures posting receives, which makes no system call.
func BenchmarkPost(b *testing.B) {
	ctx := open(b)
	for _, count := range []int{1, 16} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			s := newSide(b, ctx, verbs.RC, nil)
			check(b, s.qp.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess))
			wrs := make([]verbs.RecvWR, count)
			for i := range wrs {
				wrs[i].SGL = []verbs.SGE{s.mr.SGE(0, 64)}
			}
			b.ReportAllocs()
			for b.Loop() {
				if n, err := s.qp.PostRecv(wrs...); n < count && !errors.Is(err, verbs.ErrQueueFull) {
					b.Fatal(err)
				}
			}
		})
	}
}

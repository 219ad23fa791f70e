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

	"example.com/driver/softroce"
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/rdmatest"
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

// connect connects two QPs, with one CQ each.
func connect(t testing.TB, opt rdmatest.PairOptions) (ctx *uverbs.Context, a, b *rdmatest.Endpoint) {
	t.Helper()
	opt.OneCQ, opt.Events = true, true
	ctx = open(t)
	a, b = rdmatest.NewPair(t, ctx, ctx, opt)
	return ctx, a, b
}

func post(t testing.TB, e *rdmatest.Endpoint, wr verbs.SendWR) {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if n, err := e.QP.PostSend(wr); n != 1 || err != nil {
		t.Fatalf("posted %d: %v", n, err)
	}
}

// next waits for a completion, which must be a request's.
func next(t testing.TB, e *rdmatest.Endpoint, id uint64, op verbs.WCOpcode) verbs.WC {
	t.Helper()
	wc, err := e.SendCQ.Next(shortContext(t))
	check(t, err)
	if wc.ID != id || wc.Opcode != op || wc.QPNum != e.QP.Num() {
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
	ctx, a, b := connect(t, rdmatest.PairOptions{})
	fresh := must(a.PD.CreateQP(uverbs.QPOptions{SendCQ: a.SendCQ, RecvCQ: a.SendCQ}))(t)
	if _, err := fresh.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("post before connecting: %v", err)
	}
	receive := func(id uint64) {
		t.Helper()
		if n, err := b.QP.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.MR.SGE(0, 4096)}}); n != 1 || err != nil {
			t.Fatalf("posted %d receives: %v", n, err)
		}
	}

	before := softroce.Events()
	check(t, b.SendCQ.Arm(false))
	receive(1)
	post(t, a, verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Inline: []byte("hello "), Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("wor"), []byte("ld")}}})
	next(t, a, 2, verbs.WCSend)
	check(t, b.SendCQ.Wait(shortContext(t)))
	if softroce.Events() == before {
		t.Error("the driver counted no event")
	}
	if wc := next(t, b, 1, verbs.WCRecv); string(b.MR.Bytes()[:wc.ByteLen]) != "hello world" {
		t.Errorf("received %q", b.MR.Bytes()[:wc.ByteLen])
	}

	for i := range a.MR.Bytes()[:8192] {
		a.MR.Bytes()[i] = byte(i % 251)
	}
	data := a.MR.Bytes()[:8192]
	post(t, a, verbs.SendWR{
		ID: 3, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 4096), a.MR.SGE(4096, 4096)},
		RemoteAddr: b.MR.Addr() + 100, RKey: b.MR.RKey(),
	})
	next(t, a, 3, verbs.WCRDMAWrite)
	if !bytes.Equal(b.MR.Bytes()[100:8292], data) {
		t.Error("written data differs")
	}
	post(t, a, verbs.SendWR{
		ID: 4, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.MR.SGE(16384, 8192)},
		RemoteAddr: b.MR.Addr() + 100, RKey: b.MR.RKey(),
	})
	next(t, a, 4, verbs.WCRDMARead)
	if !bytes.Equal(a.MR.Bytes()[16384:24576], data) {
		t.Error("read data differs")
	}

	receive(5)
	post(t, a, verbs.SendWR{
		ID: 6, Opcode: verbs.OpRDMAWriteImm, Imm: 0x01020304, SGL: []verbs.SGE{a.MR.SGE(0, 8)},
		RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
	})
	next(t, a, 6, verbs.WCRDMAWrite)
	if wc := next(t, b, 5, verbs.WCRecvRDMAImm); wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != 0x01020304 {
		t.Errorf("immediate %#x, flags %v", wc.Imm(), wc.Flags)
	}

	binary.NativeEndian.PutUint64(b.MR.Bytes()[64:], 40)
	post(t, a, verbs.SendWR{
		ID: 7, Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 2}, SGL: []verbs.SGE{a.MR.SGE(0, 8)},
		RemoteAddr: b.MR.Addr() + 64, RKey: b.MR.RKey(),
	})
	next(t, a, 7, verbs.WCFetchAdd)
	if old, now := binary.NativeEndian.Uint64(a.MR.Bytes()), binary.NativeEndian.Uint64(b.MR.Bytes()[64:]); old != 40 || now != 42 {
		t.Errorf("atomic: was %d, is %d", old, now)
	}

	for what, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"no opcode":     {verbs.SendWR{}, verbs.ErrNoOpcode},
		"refused":       {verbs.SendWR{Opcode: verbs.OpFlush}, verbs.ErrOpcode},
		"inline, long":  {verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 1<<17)}, verbs.ErrInlineTooLong},
		"inline, twice": {verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte{1}, SGL: []verbs.SGE{a.MR.SGE(0, 1)}}, verbs.ErrInlineSGL},
	} {
		n, err := a.QP.PostSend(c.wr)
		if e, ok := errors.AsType[*verbs.PostError](err); n != 0 || !ok || e.QPNum != a.QP.Num() || !errors.Is(err, c.want) {
			t.Errorf("%s: posted %d: %v", what, n, err)
		}
	}

	// Closed objects return ErrClosed.
	c, _ := rdmatest.NewPair(t, ctx, ctx, rdmatest.PairOptions{OneCQ: true, Events: true})
	for _, close := range []func() error{c.QP.Close, c.SendCQ.Close} {
		check(t, close())
	}
	_, sent := c.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
	_, received := c.QP.PostRecv(verbs.RecvWR{})
	for what, err := range map[string]error{"send": sent, "receive": received, "arm": c.SendCQ.Arm(false), "resize": c.SendCQ.Resize(8)} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if n := c.SendCQ.Poll(make([]verbs.WC, 1)); n != 0 || c.SendCQ.Cap() == 0 {
		t.Errorf("%d completions after close, of %d", n, c.SendCQ.Cap())
	}

	// Requests that are posted to a QP in the error state are flushed.
	check(t, b.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
	receive(8)
	if wc, err := b.SendCQ.Next(shortContext(t)); wc.ID != 8 || !errors.Is(err, verbs.WCFlushErr) {
		t.Errorf("completion %d: %v", wc.ID, err)
	}
}

// TestResize resizes a CQ with completions in it.
func TestResize(t *testing.T) {
	released(t)
	_, a, b := connect(t, rdmatest.PairOptions{})
	const count = 20
	for id := range uint64(count) {
		post(t, a, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	}
	next(t, a, 0, verbs.WCRDMAWrite)
	check(t, a.SendCQ.Resize(500))
	if a.SendCQ.Cap() < 500 {
		t.Errorf("CQ of %d", a.SendCQ.Cap())
	}
	for id := uint64(1); id < count; id++ {
		next(t, a, id, verbs.WCRDMAWrite)
	}
	check(t, a.SendCQ.Resize(32))
	post(t, a, verbs.SendWR{ID: count, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	next(t, a, count, verbs.WCRDMAWrite)
}

// TestSRQ receives from an SRQ, which is resized and has a limit.
func TestSRQ(t *testing.T) {
	released(t)
	ctx, a, b := connect(t, rdmatest.PairOptions{SRQ: true, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8}})
	if _, err := b.QP.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrSRQ) {
		t.Errorf("receive posted to the QP: %v", err)
	}
	check(t, b.SRQ.Resize(100))
	const count = 50
	for id := range uint64(count) {
		if n, err := b.SRQ.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{b.MR.SGE(int(id), 1)}}); n != 1 || err != nil {
			t.Fatalf("posted %d: %v", n, err)
		}
	}
	check(t, b.SRQ.SetLimit(count))
	for id := range uint64(count) {
		post(t, a, verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: []byte{byte(id + 1)}})
		next(t, a, id, verbs.WCSend)
		next(t, b, id, verbs.WCRecv)
	}
	for i, v := range b.MR.Bytes()[:count] {
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
	_, a, b := connect(t, rdmatest.PairOptions{Type: verbs.UD})
	for _, s := range []*rdmatest.Endpoint{a, b} {
		if n, err := s.QP.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.MR.SGE(0, 4096)}}); n != 1 || err != nil {
			t.Fatalf("posted %d: %v", n, err)
		}
	}
	post(t, a, verbs.SendWR{ID: 2, Opcode: verbs.OpSendImm, Imm: 7, Inline: []byte("ping"), To: a.Peer})
	next(t, a, 2, verbs.WCSend)
	wc := next(t, b, 1, verbs.WCRecv)
	if got := b.MR.Bytes()[verbs.GRHSize:wc.ByteLen]; string(got) != "ping" || wc.SrcQP != a.QP.Num() || wc.Imm() != 7 {
		t.Errorf("received %q, %+v", got, wc)
	}
	reply := must(b.PD.CreateReplyAH(1, &wc, b.MR.Bytes()[:verbs.GRHSize]))(t)
	post(t, b, verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Inline: []byte("pong"), To: reply.To(wc.SrcQP, rdmatest.QKey)})
	next(t, b, 3, verbs.WCSend)
	if wc := next(t, a, 1, verbs.WCRecv); string(a.MR.Bytes()[verbs.GRHSize:wc.ByteLen]) != "pong" {
		t.Errorf("answer %q", a.MR.Bytes()[:wc.ByteLen])
	}
}

// TestConcurrent posts to one QP from several goroutines, with inline data of their own,
// and polls from all of them.
func TestConcurrent(t *testing.T) {
	released(t)
	_, a, b := connect(t, rdmatest.PairOptions{})
	const goroutines, posts = 4, 200
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range posts {
				var data [8]byte
				binary.NativeEndian.PutUint64(data[:], uint64(i))
				for {
					n, err := a.QP.PostSend(verbs.SendWR{
						ID: uint64(g), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: data[:],
						RemoteAddr: b.MR.Addr() + uint64(8*g), RKey: b.MR.RKey(),
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
				if _, err := a.SendCQ.Next(shortContext(t)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	for g := range goroutines {
		if v := binary.NativeEndian.Uint64(b.MR.Bytes()[8*g:]); v != posts-1 {
			t.Errorf("goroutine %d wrote %d last", g, v)
		}
	}
}

// TestAllocations posts and polls with requests built in the call: they do not escape,
// although they pass through an interface.
func TestAllocations(t *testing.T) {
	released(t)
	_, a, b := connect(t, rdmatest.PairOptions{})
	message := []byte("inline")
	if n := testing.AllocsPerRun(200, func() {
		if n, err := b.QP.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); n != 1 {
			t.Fatal(err)
		}
		n, err := a.QP.PostSend(
			verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 64)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: message},
		)
		if n != 2 {
			t.Fatal(err)
		}
		for _, cq := range []*uverbs.CQ{a.SendCQ, b.SendCQ} {
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
	for _, count := range []int{1, 16} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			_, s, _ := connect(b, rdmatest.PairOptions{})
			wrs := make([]verbs.RecvWR, count)
			for i := range wrs {
				wrs[i].SGL = []verbs.SGE{s.MR.SGE(0, 64)}
			}
			b.ReportAllocs()
			for b.Loop() {
				if n, err := s.QP.PostRecv(wrs...); n < count && !errors.Is(err, verbs.ErrQueueFull) {
					b.Fatal(err)
				}
			}
		})
	}
}

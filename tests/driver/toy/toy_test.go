package toy_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/driver/toy"
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// end is a QP in RTS with one CQ and memory.
type end struct {
	*uverbs.QP
	cq *uverbs.CQ
	mr *uverbs.MR
	at *cardQP // in the card
}

const depth = 8

// newEnd makes a QP with its CQ and memory, which are closed when the test ends.
func newEnd(t testing.TB, c *card, ctx *uverbs.Context) end {
	t.Helper()
	made := func(obj interface{ Close() error }, err error) {
		t.Helper()
		check(t, err)
		t.Cleanup(func() { check(t, obj.Close()) })
	}
	channel, err := ctx.CreateCompChannel()
	made(channel, err)
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 2 * depth, Channel: channel})
	made(cq, err)
	pd, err := ctx.AllocPD()
	made(pd, err)
	mr, err := pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{})
	made(mr, err)
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxInline: 16}})
	made(qp, err)
	move(t, qp, verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
	return end{qp, cq, mr, c.qps[qp.Num()]}
}

func move(t testing.TB, qp *uverbs.QP, states ...verbs.QPState) {
	t.Helper()
	for _, s := range states {
		check(t, qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState))
	}
}

// poll returns n completions, all that there are.
func (e end) poll(t testing.TB, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, 2*depth)
	if wcs = wcs[:e.cq.Poll(wcs)]; len(wcs) != n {
		t.Fatalf("%d completions, want %d: %+v", len(wcs), n, wcs)
	}
	return wcs
}

// TestData moves data between two QPs, several times around the queues.
func TestData(t *testing.T) {
	c, ctx := newCard(t)
	a, b := newEnd(t, c, ctx), newEnd(t, c, ctx)
	for i := range 5 * depth {
		text := strings.Repeat("data ", 3)
		copy(a.mr.Bytes(), text)
		clear(b.mr.Bytes())
		_, err := b.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{b.mr.SGE(0, 4), b.mr.SGE(100, 11)}})
		check(t, err)
		_, err = a.PostSend(
			verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, 15)}, RemoteAddr: b.mr.Addr() + 200},
			verbs.SendWR{ID: 1, Opcode: verbs.OpSendImm, Flags: verbs.SendSignaled, Inline: []byte(text), Imm: 42},
			verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(300, 5), a.mr.SGE(400, 10)}, RemoteAddr: b.mr.Addr() + 200},
		)
		check(t, err)
		c.run(a.at, b.at)
		if wcs := a.poll(t, 2); wcs[0].ID != 1 || wcs[0].Opcode != verbs.WCSend || wcs[1].ID != 2 || wcs[1].Opcode != verbs.WCRDMARead || wcs[1].QPNum != a.Num() {
			t.Fatalf("%+v", wcs)
		}
		if wc := b.poll(t, 1)[0]; wc.ID != uint64(i) || wc.Opcode != verbs.WCRecv || wc.ByteLen != 15 || wc.Imm() != 42 || wc.Status != verbs.WCSuccess {
			t.Fatalf("%+v", wc)
		}
		from, to := a.mr.Bytes(), b.mr.Bytes()
		if got := [...]string{string(to[:4]) + string(to[100:111]), string(to[200:215]), string(from[300:305]) + string(from[400:410])}; got != [...]string{text, text, text} {
			t.Fatalf("%q", got)
		}
	}
}

// TestEvent waits for a completion.
func TestEvent(t *testing.T) {
	c, ctx := newCard(t)
	a, b := newEnd(t, c, ctx), newEnd(t, c, ctx)
	_, err := b.PostRecv(verbs.RecvWR{ID: 7})
	check(t, err)
	check(t, b.cq.Arm(true))
	if got, want := mmap.Word64(c.kernel.Registers, toy.TOY_DB_ARM).Load(), uint64(toy.TOY_ARM_SOLICITED)|uint64(b.at.recvCQ.handle)<<32; got != want {
		t.Errorf("register %#x, want %#x", got, want)
	}
	_, err = a.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
	check(t, err)
	c.run(a.at, b.at)
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if wc, err := b.cq.Next(within); err != nil || wc.ID != 7 {
		t.Errorf("%+v, %v", wc, err)
	}
}

// TestRefused: a request that is refused is not posted, and those before it are. A full queue takes no more.
func TestRefused(t *testing.T) {
	c, ctx := newCard(t)
	a := newEnd(t, c, ctx)
	ok := verbs.SendWR{Opcode: verbs.OpRDMAWrite}
	for name, test := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"no opcode":       {verbs.SendWR{}, verbs.ErrNoOpcode},
		"opcode":          {verbs.SendWR{Opcode: verbs.OpFetchAdd}, verbs.ErrOpcode},
		"elements":        {verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 3)}, verbs.ErrTooManySGEs},
		"length":          {verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 1<<20 + 1}}}, verbs.ErrMessageTooLong},
		"inline too long": {verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 17)}, verbs.ErrInlineTooLong},
		"inline read":     {verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: make([]byte, 1)}, verbs.ErrInlineOp},
	} {
		if n, err := a.PostSend(ok, test.wr, ok); n != 1 || !errors.Is(err, test.want) {
			t.Errorf("%s: %d posted, %v", name, n, err)
		}
	}
	if n, err := a.PostSend(make([]verbs.SendWR, depth)...); n != 0 || !errors.Is(err, verbs.ErrNoOpcode) {
		t.Errorf("%d posted, %v", n, err)
	}
	if n, err := a.PostSend(ok, ok, ok); n != 2 || err != verbs.ErrQueueFull {
		t.Errorf("of a full queue: %d posted, %v", n, err)
	}
	if n, err := a.PostRecv(make([]verbs.RecvWR, depth+1)...); n != depth || err != verbs.ErrQueueFull {
		t.Errorf("%d receives posted, %v", n, err)
	}
	pd, err := ctx.AllocPD()
	check(t, err)
	defer pd.Close()
	_, err = pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, Cap: verbs.QPCap{MaxSendSGE: 3}})
	if err == nil || !strings.Contains(err.Error(), "MaxSendSGE 3 of at most 2") {
		t.Error(err)
	}
}

// TestForNothing: completions that name no request in flight are dropped.
func TestForNothing(t *testing.T) {
	c, ctx := newCard(t)
	a := newEnd(t, c, ctx)
	_, err := a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpSend}, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
	check(t, err)
	for _, e := range []toy.ToyCqe{
		{Qpn: a.Num() + 1, Opcode: toy.TOY_SEND}, {Qpn: a.Num(), Opcode: toy.TOY_SEND, Index: 2}, {Qpn: a.Num(), Opcode: toy.TOY_SEND, Index: 1<<32 - 1},
		{Qpn: a.Num(), Opcode: toy.TOY_RECV},
	} {
		a.at.sendCQ.complete(e)
	}
	a.poll(t, 0)
	a.at.sendCQ.complete(toy.ToyCqe{Qpn: a.Num(), Opcode: 99, Index: 1, Status: uint16(verbs.WCRetryExcErr)})
	a.at.sendCQ.complete(toy.ToyCqe{Qpn: a.Num(), Opcode: toy.TOY_SEND, Index: 0}) // has completed with the one behind it
	if wc := a.poll(t, 1)[0]; wc.ID != 2 || wc.Status != verbs.WCRetryExcErr {
		t.Errorf("%+v", wc)
	}
}

// TestReset: a QP that is reset drops its completions and requests, and works again.
func TestReset(t *testing.T) {
	c, ctx := newCard(t)
	a, b := newEnd(t, c, ctx), newEnd(t, c, ctx)
	for range 2 {
		_, err := a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}, verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		check(t, err)
		c.run(a.at, b.at)
		move(t, a.QP, verbs.StateReset)
		if _, err := a.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite}); !errors.Is(err, verbs.ErrState) {
			t.Errorf("in RESET: %v", err)
		}
		a.at.sent = 0
		move(t, a.QP, verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
	}
	_, err := a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	check(t, err)
	a.poll(t, 0) // the completions from before RESET have the index of a request in flight
	c.run(a.at, b.at)
	if wc := a.poll(t, 1)[0]; wc.ID != 3 {
		t.Errorf("%+v", wc)
	}
}

// TestAllocations: posting and polling allocate nothing.
func TestAllocations(t *testing.T) {
	c, ctx := newCard(t)
	a := newEnd(t, c, ctx)
	index := uint32(0)
	var wcs [2]verbs.WC
	if n := testing.AllocsPerRun(10*depth, func() {
		_, err := a.PostSend(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		_, rerr := a.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{a.mr.SGE(0, 8)}})
		a.at.sendCQ.complete(toy.ToyCqe{Qpn: a.Num(), Opcode: toy.TOY_SEND, Index: index})
		a.at.sendCQ.complete(toy.ToyCqe{Qpn: a.Num(), Opcode: toy.TOY_RECV, Index: index})
		index++
		if n := a.cq.Poll(wcs[:]); err != nil || rerr != nil || n != 2 {
			t.Fatal(err, rerr, n)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNoEscape: the driver keeps nothing of the arguments of Post and Take, which may be on the
// caller's stack.
func TestNoEscape(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	check(t, err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "leaking param") && (strings.Contains(line, ": wr") || strings.Contains(line, ": wc")) {
			t.Error(line)
		}
	}
}

// TestScenarios plays the scenarios of verbs check on each device that the machine has of this driver.
func TestScenarios(t *testing.T) {
	rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
		if ctx := d.Open(t); ctx.Driver() != "toy" {
			t.Skipf("%s is of the driver %s", d.Name, ctx.Driver())
		}
		rdmatest.Scenarios(t, d)
	})
}

// BenchmarkPostPoll measures a request: posting it, and polling its completion, which the card has
// written before.
func BenchmarkPostPoll(b *testing.B) {
	c, ctx := newCard(b)
	a := newEnd(b, c, ctx)
	wr := []verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 64)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey()}}
	var wcs [1]verbs.WC
	index := uint32(0)
	for b.Loop() {
		a.at.sendCQ.complete(toy.ToyCqe{Qpn: a.Num(), Opcode: toy.TOY_WRITE, Index: index})
		index++
		if _, err := a.PostSend(wr...); err != nil {
			b.Fatal(err)
		}
		if a.cq.Poll(wcs[:]) != 1 {
			b.Fatal("no completion")
		}
	}
}

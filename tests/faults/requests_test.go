package faults

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

func poll(t *testing.T, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if cq.Poll(wc[:]) == 1 {
			return wc[0]
		}
	}
	t.Fatal("no completion")
	return wc[0]
}

// works sends a message.
func works(t *testing.T, a, b *rdmatest.Endpoint) {
	t.Helper()
	if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("still here")}); err != nil {
		t.Fatal(err)
	}
	if wc := poll(t, a.SendCQ); wc.Err() != nil {
		t.Fatal(wc.Err())
	}
	if wc := poll(t, b.RecvCQ); wc.Err() != nil || string(b.MR.Bytes()[:10]) != "still here" {
		t.Fatal(wc.Err())
	}
}

// TestCQOverrun causes more completions than a CQ holds. An event reports that the CQ has
// failed; other CQs still work.
func TestCQOverrun(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.NeedsOverflow(t, device)
		x, y := labtest.NewPair(t, device, rdmatest.PairOptions{})
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Depth: 8}) // mlx5's send queue is full until completions are polled
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Inline: []byte("x")}
		ctx := labtest.Within(t, 10*time.Second)
		events := make(chan uverbs.AsyncEvent, 10)
		go func() {
			defer close(events)
			for e, err := range a.PD.Context().AsyncEvents(ctx) {
				if err != nil {
					return
				}
				events <- e
			}
		}()
		for n := 0; n < a.SendCQ.Cap()+10; {
			posted, err := a.QP.PostSend(wr)
			if n += posted; err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				break // the QP may fail
			}
			if ctx.Err() != nil {
				break
			}
		}
		for e := range events {
			if e.Type == verbs.EventCQErr {
				if e.CQ != a.SendCQ {
					t.Error("the event is another CQ's")
				}
				works(t, x, y)
				return
			}
		}
		t.Error("no event")
	})
}

package faults

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestEndWhilePosting ends a connection from one side, at a random moment, while the other
// continuously posts to both queues: each posted request completes once, and nothing else
// completes.
func TestEndWhilePosting(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		rounds := 10 // peers on RoCE do not report that they end
		if labtest.IWARP(t, device) {
			rounds = 150
		}
		for range rounds {
			t.Run("round", func(t *testing.T) {
				a, b := labtest.NewPair(t, device, rdmatest.PairOptions{RC: uverbs.ConnectOptions{Timeout: 8, RetryCount: 1}})
				go func() {
					time.Sleep(rand.N(3 * time.Millisecond))
					if err := b.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); err != nil {
						t.Error(err)
					}
				}()
				postUntilError(t, a, b)
			})
		}
	})
}

// queueCounts counts the requests and completions of one queue. The IDs count from 0.
type queueCounts struct {
	cq                *uverbs.CQ
	posted, completed uint64
	failed            bool
}

func (p *queueCounts) poll(t *testing.T) {
	var wcs [16]verbs.WC
	for _, wc := range wcs[:p.cq.Poll(wcs[:])] {
		if wc.ID != p.completed {
			t.Fatalf("request %d completes (%v), %d is next", wc.ID, wc.Status, p.completed)
		}
		p.completed++
		p.failed = p.failed || wc.Err() != nil
	}
}

func postUntilError(t *testing.T, a, b *rdmatest.Endpoint) {
	sends, recvs := &queueCounts{cq: a.SendCQ}, &queueCounts{cq: a.RecvCQ}
	for deadline := time.Now().Add(20 * time.Second); !sends.failed || !recvs.failed; {
		if time.Now().After(deadline) {
			t.Fatal("the connection continues")
		}
		if !recvs.failed {
			wrs := make([]verbs.RecvWR, 1+rand.IntN(4))
			for i := range wrs {
				wrs[i].ID = recvs.posted + uint64(i)
			}
			n, err := a.QP.PostRecv(wrs...)
			recvs.posted += uint64(n)
			if (err != nil || n < len(wrs)) && !errors.Is(err, verbs.ErrQueueFull) {
				t.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
			}
		}
		if !sends.failed {
			wrs := make([]verbs.SendWR, 1+rand.IntN(4))
			for i := range wrs {
				wrs[i] = verbs.SendWR{ID: sends.posted + uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("12345678"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
			}
			n, err := a.QP.PostSend(wrs...)
			sends.posted += uint64(n)
			bad, is := errors.AsType[*verbs.PostError](err)
			switch {
			case err == nil && n == len(wrs), errors.Is(err, verbs.ErrQueueFull) && n < len(wrs):
			case errors.Is(err, verbs.ErrState) && is && bad.Index == n && n < len(wrs) && bad.ID == wrs[n].ID:
				sends.failed = true
			default:
				t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
			}
		}
		sends.poll(t)
		recvs.poll(t)
	}
	labtest.Check(t, a.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
	for _, p := range []*queueCounts{sends, recvs} {
		labtest.Until(t, "the completions of what was posted", func() bool {
			p.poll(t)
			return p.completed >= p.posted
		})
	}
	time.Sleep(time.Millisecond) // in which more would come
	sends.poll(t)
	recvs.poll(t)
	if sends.completed != sends.posted || recvs.completed != recvs.posted {
		t.Errorf("%d of %d sends and %d of %d receives completed", sends.completed, sends.posted, recvs.completed, recvs.posted)
	}
}

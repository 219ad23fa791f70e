package provider

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs"
)

// takes is a CQ whose Take calls a function.
type takes struct {
	others
	Completions
	take func()
}

// others are the methods that the tests do not call.
type others struct{ CompletionQueue }

func (q *takes) Common() *Completions { return &q.Completions }

func (q *takes) Take([]verbs.WC) int {
	q.take()
	q.Unlock()
	return 0
}

// TestStopWhilePolled stops queues while polls find that nothing is left of what was added: no
// later poll takes the short path to the memory, which Stop's caller unmaps.
func TestStopWhilePolled(t *testing.T) {
	for range 2000 {
		q := &takes{take: func() {}}
		q.Word = new(atomic.Uint32)
		q.Add(verbs.WC{ID: 1})
		var polling sync.WaitGroup
		polling.Go(func() {
			for range 10 {
				Poll(q, make([]verbs.WC, 1))
			}
		})
		q.Stop(true)
		polling.Wait()
		if q.Plain() {
			t.Fatal("a stopped queue is polled on the short path")
		}
	}
}

// TestDrain moves what a lost device has written before its requests are flushed.
func TestDrain(t *testing.T) {
	q := &takes{}
	q.Word = new(atomic.Uint32)
	drained := 0
	q.take = func() { drained++ }
	Drain(q)
	q.Detach([]verbs.WC{{ID: 2, Status: verbs.WCFlushErr}})
	var wcs [2]verbs.WC
	if n := Poll(q, wcs[:]); drained != 1 || n != 1 || wcs[0].ID != 2 || q.Plain() {
		t.Errorf("drained %d times, %d completions: %v", drained, n, wcs[:n])
	}
}

package provider

import (
	"errors"
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

// TestAdded polls completions that a driver added, with less room than there are: the queue is on the long path until
// none are left.
func TestAdded(t *testing.T) {
	q := &takes{take: func() {}}
	q.Word = new(atomic.Uint32)
	if !q.Plain() || !q.Empty() || q.HasCompletions() {
		t.Fatal("a new queue has completions")
	}
	q.Add(verbs.WC{ID: 1}, verbs.WC{ID: 2})
	q.Add(verbs.WC{ID: 3})
	for _, want := range [][]uint64{{1, 2}, {3}} {
		if q.Plain() || !q.HasCompletions() {
			t.Errorf("completions from %d on are hidden", want[0])
		}
		var wcs [2]verbs.WC
		if n := Poll(q, wcs[:]); n != len(want) || wcs[0].ID != want[0] || wcs[n-1].ID != want[n-1] {
			t.Errorf("%+v, want %v", wcs[:n], want)
		}
	}
	if !q.Plain() || q.HasCompletions() || !q.TryLock() {
		t.Error("the queue is on the long path, or locked, with nothing added")
	}
	q.Fail(errors.New("broken"))
	q.Unlock()
	if q.Plain() || !q.Closed || !errors.Is(q.Err(), verbs.ErrQueueFailed) {
		t.Errorf("failed: %t, %v", q.Closed, q.Err())
	}
	q.Add(verbs.WC{ID: 4})
	if n := Poll(q, make([]verbs.WC, 2)); n != 1 || q.Plain() {
		t.Errorf("%d completions of a failed queue", n)
	}
	q.Word.Store(1)
	q.Mask = 1
	if q.HasCompletions() {
		t.Error("what a failed queue's memory says counts")
	}
	q.Add(verbs.WC{ID: 5})
	q.Stop(true)
	if n := Poll(q, make([]verbs.WC, 2)); n != 0 || q.HasCompletions() {
		t.Errorf("%d completions of a closed queue", n)
	}
}

// TestFlushedFillQueue posts to queues of a failed QP until they are full: what is polled makes room.
func TestFlushedFillQueue(t *testing.T) {
	q := &takes{take: func() {}}
	q.Word = new(atomic.Uint32)
	queues := make([]Requests, 2)
	add := func() (n int) {
		for i := range queues {
			for q.AddFlushed(&queues[i], 3, uint64(i), verbs.WCRecv) {
				n++
			}
		}
		return n
	}
	if n := add(); n != 6 {
		t.Fatalf("two queues of 3 requests take %d", n)
	}
	for k := range 6 {
		if n := Poll(q, make([]verbs.WC, k)); n != k {
			t.Fatalf("%d completions, want %d", n, k)
		}
		if n := add(); n != k {
			t.Fatalf("%d completions make room for %d requests", k, n)
		}
	}
}

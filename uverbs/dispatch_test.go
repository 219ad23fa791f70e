package uverbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// externalSends is a send queue of a driver that is not built in. It counts inline data.
type externalSends struct {
	provider.SendQueue
	data int
}

func (q *externalSends) Post(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		q.data += len(wrs[i].Inline)
		for _, b := range provider.Args(&wrs[i]).InlineList {
			q.data += len(b)
		}
	}
	return len(wrs), nil
}

// externalCQ returns numbered completions.
type externalCQ struct {
	provider.CompletionQueue
	provider.Completions
	done atomic.Uint32 // how many completions there have been
}

func newExternalCQ(have uint32) *externalCQ {
	q := new(externalCQ)
	q.Word, q.Mask = &q.done, ^uint32(0)
	q.done.Store(have)
	return q
}

func (q *externalCQ) Common() *provider.Completions { return &q.Completions }
func (q *externalCQ) Stop(stop bool)                { q.Completions.Stop(stop) }

func (q *externalCQ) Take(wcs []verbs.WC) (n int) {
	for ; n < len(wcs) && q.None != q.done.Load(); n++ {
		wcs[n] = verbs.WC{ID: uint64(q.None)}
		q.None++
	}
	q.Unlock()
	return n
}

// numbered is the send queue of a QP that gets its number when it is modified.
type numbered struct{ provider.SendQueue }

func (numbered) QPNum() uint32 { return 17 }

// TestNumWhileModified waits for the number of a DCT while another goroutine modifies it.
func TestNumWhileModified(t *testing.T) {
	q := &QP{typ: verbs.DCT, send: numbered{}}
	go q.moved(verbs.StateRTR, verbs.MaskState)
	eventually(t, "the number", func() bool { return q.Num() == 17 })
}

// TestPollExternal polls a CQ of a driver that is not built in, also while its lock is held, and
// then completions that the device does not write.
func TestPollExternal(t *testing.T) {
	for _, c := range []struct{ have, added, room, want int }{{0, 0, 8, 0}, {5, 0, 8, 5}, {8, 0, 8, 8}, {9, 3, 8, 8}, {5, 2, 8, 7}, {5, 9, 8, 8}, {0, 3, 8, 3}, {5, 0, 0, 0}} {
		q := newExternalCQ(uint32(c.have))
		cq := &CQ{queue: q, common: q.Common()}
		for i := range c.added {
			q.Add(verbs.WC{ID: uint64(c.have + i)})
		}
		wcs := make([]verbs.WC, c.room)
		n, done := 0, make(chan bool)
		q.Lock()
		go func() {
			n = cq.Poll(wcs)
			close(done)
		}()
		q.Unlock()
		if <-done; n != c.want {
			t.Errorf("polled %d into %d of %d and %d", n, c.room, c.have, c.added)
		}
		for i := range wcs[:c.want] {
			if wcs[i].ID != uint64(i) {
				t.Fatalf("completion %d is %d", i, wcs[i].ID)
			}
		}
		if got := q.HasCompletions(); got != (c.have+c.added > c.want) {
			t.Errorf("%d of %d and %d were polled, are there more: %t", n, c.have, c.added, got)
		}
		if q.Stop(true); cq.Poll(wcs) != 0 || q.HasCompletions() {
			t.Error("completions of a closed queue")
		}
	}
}

// TestExternalAllocations posts to, and polls, queues of a driver that is not built in.
func TestExternalAllocations(t *testing.T) {
	sends, q := new(externalSends), newExternalCQ(0)
	qp, cq := &QP{send: sends}, &CQ{queue: q, common: q.Common()}
	if n := testing.AllocsPerRun(100, func() {
		data := [...]byte{1, 2, 3}
		qp.PostSend(verbs.SendWR{Inline: data[:]}, verbs.SendWR{Args: &verbs.SendArgs{InlineList: [][]byte{data[1:]}}})
		q.done.Add(1)
		var wcs [2]verbs.WC
		if got := cq.Poll(wcs[:]); got != 1 {
			t.Errorf("polled %d", got)
		}
	}); n != 0 || sends.data != 101*5 {
		t.Errorf("%v allocations, %d bytes", n, sends.data)
	}
	if n, err := qp.PostSend(); n != 0 || err != nil {
		t.Errorf("posted nothing: %d, %v", n, err)
	}
}

// BenchmarkExternal measures the cost of calling a driver, which does little.
func BenchmarkExternal(b *testing.B) {
	for _, n := range []int{1, 16} {
		qp, wrs := &QP{send: new(externalSends)}, make([]verbs.SendWR, n)
		b.Run(fmt.Sprintf("post/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				qp.PostSend(wrs...)
			}
		})
		b.Run(fmt.Sprintf("poll/%d", n), func(b *testing.B) {
			q := newExternalCQ(0)
			cq := &CQ{queue: q, common: q.Common()}
			b.ReportAllocs()
			for b.Loop() {
				q.done.Add(uint32(n))
				var wcs [16]verbs.WC
				cq.Poll(wcs[:])
			}
		})
	}
}

// TestNoDriver opens devices without a driver.
func TestNoDriver(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
	defer func(all []provider.Driver) { builtin = all }(builtin)
	builtin = builtin[1:]
	_, err := Open("rxe0")
	if !errors.Is(err, verbs.ErrNoDriver) || !errors.Is(err, verbs.ErrNoRDMA) {
		t.Fatal(err)
	}
	if text := err.Error(); !strings.Contains(text, "rdma_driver_id is 14 (rxe)") || !strings.Contains(text, "drivers for siw") {
		t.Error(text)
	}
	builtin = nil
	if _, err := Open("siw0"); err == nil || !strings.Contains(err.Error(), "18 (siw), there are no drivers") {
		t.Error(err)
	}
}

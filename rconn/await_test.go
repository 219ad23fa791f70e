//go:build linux

package rconn

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestAwait awaits completions of both directions in order, one or several at a time.
func TestAwait(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b, out := receivers(t, device, 64)
		for i := range 6 {
			check(t, a.Post(Send(out.Span(0, i)).With(uint64(i), verbs.SendSignaled)))
		}
		for i, wc := range append(await(t, a, Sends, 4), await(t, a, Sends, 2)...) {
			if wc.ID != uint64(i) {
				t.Errorf("send %d: %+v", i, wc)
			}
		}
		for i, wc := range append(await(t, b, Recvs, 1), await(t, b, Recvs, 5)...) {
			if wc.ID != uint64(i) || wc.ByteLen != uint32(i) {
				t.Errorf("receive %d: %+v", i, wc)
			}
		}
		check(t, a.Await(testContext(t), Sends, nil)) // returns without waiting
	})
}

// receivers makes a connection: b has posted n receives, with IDs from 0, and a has 64
// bytes to send.
func receivers(t testing.TB, device string, n int) (a, b *Conn, out *LocalRegion) {
	t.Helper()
	a, b = newPair(t, device, Options{}, Options{Options: cm.Options{Cap: verbs.QPCap{MaxRecvWR: n}}, Setup: func(c *Conn) error {
		in, err := c.Alloc(64*n, LocalWrite)
		for i := 0; i < n && err == nil; i++ {
			err = c.PostRecv(uint64(i), in.Span(64*i, 64))
		}
		return err
	}})
	return a, b, labtest.Must(a.Alloc(64, 0))(t)
}

// TestAwaitCancelled cancels waits for more completions than there are: they take none.
func TestAwaitCancelled(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b, out := receivers(t, device, 8)
		check(t, a.Post(Send(out.All()).With(0, verbs.SendSignaled)))
		await(t, a, Sends, 1)
		var wcs [3]verbs.WC
		cancelled := func(have int) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.Await(ctx, Recvs, wcs[:]) }()
			labtest.Until(t, "the waiter to collect what is there", func() bool {
				b.recv.mu.Lock()
				defer b.recv.mu.Unlock()
				return b.recv.ready.Len() == have && len(b.recv.began) > 0
			})
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Fatalf("a wait that was cancelled: %v", err)
			}
		}
		cancelled(1)
		check(t, a.Post(Send(out.All()).With(0, verbs.SendSignaled)))
		cancelled(2)
		check(t, a.Post(Send(out.All()).With(0, verbs.SendSignaled)))
		for i, wc := range await(t, b, Recvs, 3) {
			if wc.ID != uint64(i) {
				t.Errorf("receive %d: %+v", i, wc)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Await(ctx, Recvs, wcs[:1]); !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that is cancelled from the start: %v", err)
		}
	})
}

// TestAwaitMany tests that many goroutines, which await one or several completions,
// sometimes with a timeout, take each completion once.
func TestAwaitMany(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const total = 600
		a, b, out := receivers(t, device, 64)
		in := labtest.Must(b.Alloc(64, LocalWrite))(t)
		var mu sync.Mutex
		seen := map[uint64]int{}
		posted, count := uint64(64), 0
		took := func(wcs []verbs.WC) {
			mu.Lock()
			defer mu.Unlock()
			for i := range wcs {
				if wcs[i].Status != verbs.WCSuccess {
					continue
				}
				seen[wcs[i].ID]++
				count++
				if posted < total {
					if err := b.PostRecv(posted, in.All()); err != nil {
						t.Error(err)
					}
					posted++
				}
			}
		}
		var waiters sync.WaitGroup
		ctx, stop := context.WithCancel(testContext(t))
		for w := range 8 {
			waiters.Go(func() {
				wcs := make([]verbs.WC, w%3+1)
				for ctx.Err() == nil {
					mine, cancel := ctx, context.CancelFunc(func() {})
					if w%2 == 0 {
						mine, cancel = context.WithTimeout(ctx, time.Duration(w+1)*time.Millisecond)
					}
					if b.Await(mine, Recvs, wcs) == nil {
						took(wcs)
					}
					cancel()
				}
			})
		}
		// Each message needs a receive: otherwise siw ends the connection.
		for i := range total {
			labtest.Until(t, "a receive", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return uint64(i) < posted
			})
			check(t, a.Post(Send(out.All()).With(uint64(i), verbs.SendSignaled)))
			await(t, a, Sends, 1)
		}
		labtest.Until(t, "all messages to be taken", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return count == total
		})
		stop()
		waiters.Wait()
		for id, n := range seen {
			if n != 1 {
				t.Errorf("receive %d was taken %d times", id, n)
			}
		}
	})
}

// TestQueueFull fills both queues with requests, and with completions that are not taken.
func TestQueueFull(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: 4}}, Adverts: 1}, Options{Options: cm.Options{Cap: verbs.QPCap{MaxRecvWR: 3}}})
		_, remote := advertise(t, b, a, 64, ReadWrite)
		mine := labtest.Must(a.Alloc(64, LocalWrite))(t)
		for i := range 4 {
			check(t, a.Post(Write(remote.At(0), mine.All()).With(uint64(i), verbs.SendSignaled)))
		}
		if err := a.Post(Write(remote.At(0), mine.All()).With(9, verbs.SendSignaled)); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("a fifth request: %v", err)
		}
		check(t, a.Put(testContext(t), remote.At(0), make([]byte, 64))) // requests of helpers still have room
		if err := a.Post(Write(remote.At(0), mine.All()).With(9, verbs.SendSignaled)); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("a fifth request whose completion has no place: %v", err)
		}
		for i, wc := range await(t, a, Sends, 4) {
			if wc.ID != uint64(i) {
				t.Errorf("write %d: %+v", i, wc)
			}
		}
		check(t, a.Post(Write(remote.At(0), mine.All()).With(9, verbs.SendSignaled)))
		await(t, a, Sends, 1)

		in := labtest.Must(b.Alloc(64, LocalWrite))(t)
		for i := range 3 {
			check(t, b.PostRecv(uint64(i), in.All()))
		}
		if err := b.PostRecv(9, in.All()); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("a fourth receive: %v", err)
		}
		check(t, a.Post(Send(mine.All()).With(0, verbs.SendSignaled)))
		await(t, a, Sends, 1)
		labtest.Until(t, "the completion, which nobody takes", func() bool {
			b.recv.mu.Lock()
			defer b.recv.mu.Unlock()
			b.recv.poll()
			return b.recv.ready.Len() == 1
		})
		if err := b.PostRecv(9, in.All()); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("a receive whose completion has no place: %v", err)
		}
		await(t, b, Recvs, 1)
		check(t, b.PostRecv(9, in.All()))
	})
}

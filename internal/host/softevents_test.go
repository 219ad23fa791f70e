package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/host"
)

// queue is a virtual file of events of one byte.
type queue struct {
	host.Unsupported
	readiness host.Readiness

	mu     sync.Mutex
	events []byte
	closed bool
}

func (q *queue) Watch(changed func(host.State)) func() { return q.readiness.Watch(changed) }

func (q *queue) put(b byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, b)
	q.readiness.Set(host.Readable)
}

func (q *queue) Read(b []byte) (int, syscall.Errno) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return 0, syscall.EAGAIN
	}
	b[0] = q.events[0]
	if q.events = q.events[1:]; len(q.events) == 0 {
		q.readiness.Set(host.Idle)
	}
	return 1, 0
}

func (q *queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// virtualQueue returns a File of a new queue.
func virtualQueue(t *testing.T) (host.EventFile, *queue) {
	t.Helper()
	q := &queue{}
	fd, errno := host.Install(q, "queue")
	if errno != 0 {
		t.Fatal(errno)
	}
	f, err := host.NewEventFile(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, q
}

// read returns an op that reads a byte.
func read(b []byte) func(fd int) error {
	return func(fd int) error {
		_, err := host.Read(fd, b)
		return err
	}
}

// TestVirtualSleepEnds ends sleeps on a virtual file in every way, now and later, by a fake
// clock.
func TestVirtualSleepEnds(t *testing.T) {
	for _, after := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f, q := virtualQueue(t)
			b := make([]byte, 1)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			sleep := func(name string, ctx context.Context, until time.Time, want error, do func()) {
				t.Helper()
				begin := time.Now()
				defer time.AfterFunc(after, do).Stop()
				if err := f.Sleep(ctx, until, read(b)); !errors.Is(err, want) {
					t.Errorf("%s after %v: %v", name, after, err)
				}
				if took := time.Since(begin); took != after {
					t.Errorf("%s after %v: took %v", name, after, took)
				}
				synctest.Wait()
			}
			sleep("context", ctx, time.Time{}, context.DeadlineExceeded, func() {})
			sleep("time", t.Context(), time.Now().Add(after), os.ErrDeadlineExceeded, func() {})
			sleep("wake", t.Context(), time.Time{}, nil, f.Wake)
			sleep("event", t.Context(), time.Time{}, nil, func() { q.put(7) })
			if b[0] != 7 {
				t.Errorf("read %d", b[0])
			}
			sleep("close", t.Context(), time.Time{}, verbs.ErrClosed, func() { f.Close() })
			if !q.isClosed() || host.Get(f.FD()) != nil {
				t.Error("the file is open")
			}
			if err := f.Sleep(t.Context(), time.Time{}, read(b)); err != verbs.ErrClosed {
				t.Errorf("sleep on a closed file: %v", err)
			}
			if err := f.Close(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("second close: %v", err)
			}
		})
	}
}

// TestVirtualEventBeforeEnd reads a pending event although the context has ended, or the time
// has passed.
func TestVirtualEventBeforeEnd(t *testing.T) {
	f, q := virtualQueue(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, until := range []time.Time{{}, time.Unix(1, 0)} {
		q.put(1)
		if err := f.Sleep(over, until, read(make([]byte, 1))); err != nil {
			t.Error(err)
		}
		if err := f.Sleep(over, until, read(make([]byte, 1))); err != context.Canceled {
			t.Error(err)
		}
	}
}

// TestVirtualWakeBeforeSleep ends the next sleep, and only that.
func TestVirtualWakeBeforeSleep(t *testing.T) {
	f, q := virtualQueue(t)
	b := make([]byte, 1)
	for range 10 {
		f.Wake()
		f.Wake()
		if err := f.Sleep(t.Context(), time.Time{}, read(b)); err != nil || b[0] != 0 {
			t.Fatal(err, b)
		}
		q.put(1)
		if err := f.Sleep(t.Context(), time.Time{}, read(b)); err != nil || b[0] != 1 {
			t.Fatal(err, b)
		}
		b[0] = 0
	}
}

// TestVirtualCloseDuringOp closes a file while an op uses it, which may use it again.
func TestVirtualCloseDuringOp(t *testing.T) {
	f, q := virtualQueue(t)
	call := func(op func(fd int) error) error { return f.Sleep(t.Context(), time.Now(), op) } // it does not sleep
	err := call(func(fd int) error {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if q.isClosed() || host.Get(fd) != q {
			t.Error("the descriptor is closed during an op")
		}
		return call(func(int) error { return nil })
	})
	if err != verbs.ErrClosed || !q.isClosed() {
		t.Errorf("%v; closed: %t", err, q.isClosed())
	}
}

// TestVirtualNoAllocation sleeps and reads without allocating.
func TestVirtualNoAllocation(t *testing.T) {
	f, q := virtualQueue(t)
	b := make([]byte, 1)
	op := read(b)
	q.events = make([]byte, 0, 1000)
	if n := testing.AllocsPerRun(100, func() {
		q.put(1)
		if err := f.Sleep(t.Context(), time.Now().Add(time.Hour), op); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// virtualSource is a Source that sleeps on a virtual file and counts events.
type virtualSource struct {
	f  host.EventFile
	op func(fd int) error
}

func (s *virtualSource) Arm() error { return nil }
func (s *virtualSource) Wake()      { s.f.Wake() }
func (s *virtualSource) Sleep(ctx context.Context, until time.Time) error {
	return s.f.Sleep(ctx, until, s.op)
}

// TestVirtualGroup lets goroutines of two bubbles wait in groups, one after the other: nothing
// of the first bubble is used in the second.
func TestVirtualGroup(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			f, q := virtualQueue(t)
			var mu sync.Mutex
			pending := 0
			var g event.Group
			var c event.Cond
			c.Init(&g)
			b := make([]byte, 1)
			g.Init(&virtualSource{f, func(fd int) error {
				err := read(b)(fd)
				if err == nil {
					mu.Lock()
					pending++
					mu.Unlock()
					c.Signal()
				}
				return err
			}})
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					mu.Lock()
					defer mu.Unlock()
					if err := c.Wait(t.Context(), &mu, nil, func() bool {
						if pending == 0 {
							return false
						}
						pending--
						return true
					}); err != nil {
						t.Error(err)
					}
				})
			}
			for range 5 {
				synctest.Wait()
				q.put(1)
			}
			all.Wait()
		})
	}
}

// TestEnded has contexts that end in each way.
func TestEnded(t *testing.T) {
	why := errors.New("why")
	cancelled := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	late := func(cause error) context.Context {
		ctx, cancel := context.WithDeadlineCause(t.Context(), time.Unix(1, 0), cause)
		t.Cleanup(cancel)
		return ctx
	}
	for _, test := range []struct {
		ctx  context.Context
		text string
		is   []error
	}{
		{t.Context(), "<nil>", nil},
		{cancelled(nil), "context canceled", []error{context.Canceled}},
		{cancelled(why), "context canceled: why", []error{context.Canceled, why}},
		{late(nil), "context deadline exceeded", []error{context.DeadlineExceeded}},
		{late(why), "context deadline exceeded: why", []error{context.DeadlineExceeded, why}},
		{late(fmt.Errorf("nothing within a second: %w", context.DeadlineExceeded)), "nothing within a second: context deadline exceeded", []error{context.DeadlineExceeded}},
	} {
		err := host.Ended(test.ctx)
		if fmt.Sprint(err) != test.text {
			t.Errorf("%v, want %s", err, test.text)
		}
		for _, want := range test.is {
			if !errors.Is(err, want) {
				t.Errorf("%v is not %v", err, want)
			}
		}
	}
}

//go:build linux && !nordma

package uverbs

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// newPipeChannel returns a channel whose events the test sends, by the number of their CQ.
func newPipeChannel(t *testing.T) (c *channel, send func(id uint64)) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	file, err := host.NewEventFile(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return newChannel(file), func(id uint64) {
		e := abi.IbUverbsCompEventDesc{CqHandle: id}
		if _, err := unix.Write(fds[1], mmap.Bytes(&e)); err != nil {
			t.Error(err)
		}
	}
}

// TestLateEvent reads an event of a CQ that was closed after the event was sent: the
// event is dropped.
func TestLateEvent(t *testing.T) {
	const open, closed = 7, 8
	c, send := newPipeChannel(t)
	cq := c.addCQ(open, nil)
	c.removeCQ(c.addCQ(closed, nil))
	send(closed)
	send(open)
	if err := c.wait(t.Context(), cq); err != nil {
		t.Error(err)
	}
	if len(c.ready) != 0 {
		t.Errorf("events are left: %v", c.ready)
	}
}

// TestWaitAlone ends a goroutine that waits alone in each way: by an event of its CQ, also after
// others have come to wait for other CQs, by its context, by Close of its CQ, and by an overrun.
func TestWaitAlone(t *testing.T) {
	c, send := newPipeChannel(t)
	asleep := func() { // waits until a goroutine waits alone
		for alone := false; !alone; {
			c.mu.Lock()
			alone = c.sleeping
			c.mu.Unlock()
			runtime.Gosched()
		}
	}
	wait := func(ctx context.Context, cq *cqEvents) chan error {
		end := make(chan error, 1)
		go func() { end <- c.wait(ctx, cq) }()
		return end
	}
	const others = 3
	first, cqs, ends := c.addCQ(0, nil), [others]*cqEvents{}, [others]chan error{}
	end := wait(t.Context(), first)
	asleep()
	for i := range cqs {
		cqs[i] = c.addCQ(uint64(i+1), nil)
		ends[i] = wait(t.Context(), cqs[i])
		send(cqs[i].id) // perhaps before the goroutine has come
	}
	for _, end := range ends {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	last := wait(t.Context(), cqs[0])
	send(first.id)
	if err := <-end; err != nil {
		t.Error(err)
	}
	send(cqs[0].id) // somebody reads it when the first has gone
	if err := <-last; err != nil {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	for _, way := range []struct {
		end  func()
		want error
	}{
		{cancel, context.Canceled},
		{func() { c.fail(cqs[1]) }, errOverrun},
		{func() { c.removeCQ(cqs[1]) }, verbs.ErrClosed},
	} {
		cq := cqs[0]
		if way.want != context.Canceled {
			cq = cqs[1]
			ctx = t.Context()
		}
		cq.failed = false
		end := wait(ctx, cq)
		asleep()
		way.end()
		if err := <-end; !errors.Is(err, way.want) {
			t.Errorf("%v, want %v", err, way.want)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busyLocked() || len(c.ready) > 0 {
		t.Errorf("left: sleeping %v, ready %v", c.sleeping, c.ready)
	}
}

package uverbs

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// CompChannel carries the events of armed CQs (ibv_create_comp_channel(3)).
// One may serve any number of CQs, which are closed before it. Events need no
// acknowledging.
type CompChannel struct {
	ctx *Context
	obj *object
	ch  *channel
}

// channel is what CQs need of it.
type channel struct {
	file *sys.EventFile
	cqs  *registry
	turn chan struct{} // held by whoever reads file for all

	mu      sync.Mutex
	pending map[uint64]int // events read and not yet waited for, by CQ
	grown   uint64         // how often pending has
	changed chan struct{}  // closed when it grows again; nil if nobody waits for that
	sleep   sleep
	counts  map[uint64]provider.EventCounter // by CQ
}

// CreateCompChannel makes a completion channel.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	const op = "create completion channel"
	if err := c.obj.enter(op); err != nil {
		return nil, err
	}
	defer c.obj.exit()
	var req abi.IbUverbsCreateCompChannel
	var resp abi.IbUverbsCreateCompChannelResp
	err := c.file.Invoke(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, mmap.Bytes(&req), mmap.Bytes(&resp), nil, nil)
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	file, err := sys.NewEventFile(int(resp.Fd), "uverbs completion channel")
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	ch := &channel{
		file:    file,
		cqs:     c.registry,
		turn:    make(chan struct{}, 1),
		pending: map[uint64]int{},
	}
	cc := &CompChannel{ctx: c, ch: ch}
	cc.obj = newObject(c.device.Name, name{format: "completion channel"}, file.Close, c.obj)
	closeUnreachable(cc, cc.obj)
	return cc, nil
}

// Close closes the channel. It fails with [verbs.ErrInUse] while CQs use it.
func (c *CompChannel) Close() error { return c.obj.close() }

// Wait waits for an event of any of the channel's CQs and returns that CQ. It
// takes events away from calls that wait for a single CQ.
func (c *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	for {
		id, err := c.ch.wait(ctx, 0, nil)
		if err != nil {
			return nil, c.obj.fail("wait on", err)
		}
		if cq := c.ctx.registry.get(id).cq.Value(); cq != nil {
			return cq, nil
		}
	}
}

// TryWait is [CompChannel.Wait] that does not wait: it returns nil if there is no event.
// One read of the file may take up events of several CQs, so programs that wait for
// [CompChannel.FD] to be readable call TryWait until it returns nil.
func (c *CompChannel) TryWait() (*CQ, error) {
	cq, err := c.Wait(over)
	if errors.Is(err, context.Canceled) {
		return nil, nil
	}
	return cq, err
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// wait waits for an event of the CQ id, or of any if id is 0, until gone is
// closed. Whoever waits takes turns reading for all: no goroutine is needed, and
// a waiter that gives up leaves what it read to the others.
func (c *channel) wait(ctx context.Context, id uint64, gone <-chan struct{}) (uint64, error) {
	if ctx.Done() != nil && ctx.Err() == nil {
		defer context.AfterFunc(ctx, c.wakeUp)()
	}
	for {
		c.mu.Lock()
		got, ok := c.take(id)
		grown := c.grown
		c.mu.Unlock()
		if ok {
			return got, nil
		}
		mine, err := c.enter(ctx, grown, gone)
		if mine {
			err = c.read(ctx, grown, gone)
			<-c.turn
		}
		if err != nil {
			return 0, err
		}
	}
}

// enter waits for the turn to read, or until pending has grown more often.
func (c *channel) enter(ctx context.Context, grown uint64, gone <-chan struct{}) (mine bool, err error) {
	select {
	case c.turn <- struct{}{}:
		return true, nil
	default:
	}
	c.mu.Lock()
	if c.grown != grown {
		c.mu.Unlock()
		return false, nil
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	changed := c.changed
	c.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
		return true, nil
	case <-changed:
		return false, nil
	case <-gone:
		return false, verbs.ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (c *channel) take(id uint64) (uint64, bool) {
	if id == 0 {
		for id = range c.pending {
			break
		}
	}
	n := c.pending[id]
	if n == 0 {
		return 0, false
	}
	if n == 1 {
		delete(c.pending, id)
	} else {
		c.pending[id] = n - 1
	}
	return id, true
}

// read takes up events, unless pending has grown more often, and waits for them,
// or for wake. The caller has the turn: from here on no other takes a wake that
// is meant for it.
func (c *channel) read(ctx context.Context, grown uint64, gone <-chan struct{}) (err error) {
	select {
	case <-gone:
		return verbs.ErrClosed
	default:
	}
	c.mu.Lock()
	stale := c.grown != grown
	c.mu.Unlock()
	if stale {
		return nil
	}
	n := 0
	if late := ctx.Err(); late == nil {
		n, err = c.rest(time.Time{})
	} else {
		// Events that are there already are to be had.
		n, err = c.file.TryRead(mmap.Bytes(&c.sleep.buf))
		n /= len(mmap.Bytes(&c.sleep.buf[0]))
		if err == unix.EAGAIN {
			err = late
		}
		c.mu.Lock()
		c.counted(n)
		c.mu.Unlock()
	}
	if err != nil || n == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.sleep.buf[:n] {
		if c.cqs.get(e.CqHandle).obj != nil { // or drop was called since the event was read
			c.pending[e.CqHandle]++
		}
	}
	c.tell()
	return nil
}

// countEvents makes the driver of a CQ count its events.
func (c *channel) countEvents(id uint64, counter provider.EventCounter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[uint64]provider.EventCounter{}
	}
	c.counts[id] = counter
}

// counted lets drivers count the n events in buf. mu is held.
func (c *channel) counted(n int) {
	if len(c.counts) == 0 {
		return
	}
	for _, e := range c.sleep.buf[:n] {
		if counter := c.counts[e.CqHandle]; counter != nil {
			counter.CountEvent()
		}
	}
}

// add is an event that does not come from the kernel.
func (c *channel) add(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[id]++
	c.tell()
	c.sleep.events++
	c.wake()
}

// tell wakes those who wait for pending to grow.
func (c *channel) tell() {
	c.grown++
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// drop forgets the events of a CQ that is gone, and has whoever reads see that.
func (c *channel) drop(id uint64) {
	c.mu.Lock()
	delete(c.pending, id)
	delete(c.counts, id)
	c.wake()
	c.mu.Unlock()
}

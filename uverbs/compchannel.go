package uverbs

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// ErrNoChannel is waiting for a CQ that was made without a [CompChannel].
var ErrNoChannel = errors.New("CQ has no completion channel")

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
	turn chan struct{} // held by whoever reads file for all

	mu      sync.Mutex
	pending map[uint64]int // events read and not yet waited for, by CQ
	changed chan struct{}  // closed, and made anew, when pending grows
	stop    func()         // makes whoever reads look again; nil if nobody does
	sleep   sleep
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
		turn:    make(chan struct{}, 1),
		pending: map[uint64]int{},
		changed: make(chan struct{}),
	}
	cc := &CompChannel{ctx: c, ch: ch}
	cc.obj = newObject(c.device.Name, name{format: "completion channel"}, file.Close, c.obj)
	runtime.AddCleanup(cc, (*object).forget, cc.obj)
	return cc, nil
}

// Close closes the channel. It fails with [ErrInUse] while CQs use it.
func (c *CompChannel) Close() error { return c.obj.close() }

// Wait waits for an event of any of the channel's CQs and returns that CQ. It
// takes events away from those who wait for a single CQ.
func (c *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	for {
		id, err := c.ch.wait(ctx, 0)
		if err != nil {
			return nil, c.obj.fail("wait on", err)
		}
		if cq := c.ctx.target(id).cq.Value(); cq != nil {
			return cq, nil
		}
	}
}

// wait waits for an event of the CQ id, or of any if id is 0. Whoever waits
// takes turns reading for all: no goroutine is needed, and a waiter that gives
// up leaves what it read to the others.
func (c *channel) wait(ctx context.Context, id uint64) (uint64, error) {
	for {
		c.mu.Lock()
		got, ok := c.take(id)
		changed := c.changed
		c.mu.Unlock()
		if ok {
			return got, nil
		}
		select {
		case c.turn <- struct{}{}:
		case <-changed:
			continue
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		// Between the look and the turn another may have read ours.
		reading, stop := context.WithCancel(ctx)
		c.mu.Lock()
		fresh := c.changed == changed
		c.stop = stop
		c.mu.Unlock()
		var err error
		if fresh {
			err = c.read(reading)
		}
		c.mu.Lock()
		c.stop = nil
		c.mu.Unlock()
		<-c.turn
		again := reading.Err() != nil && ctx.Err() == nil
		stop()
		if err != nil && !again {
			return 0, err
		}
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

func (c *channel) read(ctx context.Context) error {
	var events [16]abi.IbUverbsCompEventDesc
	n, err := c.file.Read(ctx, mmap.Bytes(&events))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events[:n/len(mmap.Bytes(&events[0]))] {
		c.pending[e.CqHandle]++
	}
	c.tell()
	return nil
}

// add is an event that does not come from the kernel.
func (c *channel) add(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[id]++
	c.tell()
	if c.stop != nil {
		c.stop()
	}
	c.sleep.events++
	c.wake()
}

// tell wakes those who wait for pending to grow.
func (c *channel) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// drop forgets the events of a CQ that is gone.
func (c *channel) drop(id uint64) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
}

package uverbs

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// CompChannel delivers the events of armed CQs (ibv_create_comp_channel(3)). CQs that use it are
// closed before it. Events need no acknowledgement.
type CompChannel struct {
	ctx *Context
	obj *object
	ch  *channel
}

// channel is the part of a CompChannel that its CQs use, and the event source of the goroutines
// that wait for its CQs. All CQs of a channel share a file, from which one goroutine reads for all.
type channel struct {
	file  host.EventFile
	group event.Group

	mu         sync.Mutex
	cqs        map[uint64]*cqEvents // by the CQ's number
	ready      []*cqEvents          // the CQs that have events
	anyPending event.Cond           // signaled when a CQ has an event
	injected   int                  // number of events added by drivers, for sleep
	sleeping   bool                 // a goroutine is in sleep or in waitAlone
	exposed    bool                 // the program may have the CompChannel

	// Used by the goroutine that sleeps.
	buf                     eventBuffer
	lastRead                int // number of events of the last read by countEvents
	readEvents, countEvents func(fd int) error
}

type eventBuffer [16]abi.IbUverbsCompEventDesc

// cqEvents is the channel's state of a CQ.
type cqEvents struct {
	id      uint64
	counter provider.EventCounter // may be nil
	events  int                   // read and not yet returned to a waiter
	at      int                   // the place in ready, if it has events
	pending event.Cond            // signaled when it has events, or is closed
	closed  bool
	failed  bool // see [CQ.overrun]
	retired bool // another CQ has its number now, see [bridge.RecycleCQ]
}

// err returns why nobody can wait for the CQ, or nil. The caller holds the channel's mu.
func (cq *cqEvents) err() error {
	switch {
	case cq.closed:
		return verbs.ErrClosed
	case cq.failed:
		return errOverrun
	}
	return nil
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
	file, err := host.NewEventFile(int(resp.Fd))
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	cc := &CompChannel{ctx: c, ch: newChannel(file)}
	cc.obj = newObject(c.device.Name, objectName{format: "completion channel"}, file.Close, c.obj)
	addCleanup(cc, cc.obj)
	return cc, nil
}

// Close closes the channel. It fails while CQs use it.
func (c *CompChannel) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	return c.obj.close()
}

func newChannel(file host.EventFile) *channel {
	c := &channel{file: file, cqs: map[uint64]*cqEvents{}}
	c.group.Init(c)
	c.anyPending.Init(&c.group)
	c.readEvents = func(fd int) error {
		_, err := c.read(fd, &c.buf, c.deliver)
		return err
	}
	c.countEvents = func(fd int) (err error) {
		c.lastRead, err = c.read(fd, &c.buf, func(*cqEvents) {})
		return err
	}
	return c
}

// FD returns the channel's file descriptor, for event loops. It is readable when an armed CQ has
// completions, and valid until Close. Take events with [CompChannel.TryWait], or read them (struct
// ib_uverbs_comp_event_desc) and poll all CQs. Do not also wait for a CQ of the channel ([CQ.Wait],
// [CQ.PollWait], [CQ.Next]): one goroutine that waits reads the events of all of its CQs, and FD is not
// readable for what it has read. docs/kernels.md says when to arm a CQ of siw or erdma again.
func (c *CompChannel) FD() int { return c.ch.file.FD() }

// TryWait takes an event and returns its CQ, or nil if there is none. When [CompChannel.FD] is
// readable, call it until it returns nil. [CQ.Wait] does not see the event.
func (c *CompChannel) TryWait() (*CQ, error) {
	ch := c.ch
	for {
		var id uint64
		ch.mu.Lock()
		err := ch.anyPending.Wait(canceledContext, &ch.mu, nil, func() bool {
			if len(ch.ready) == 0 {
				return false
			}
			cq := ch.ready[rand.IntN(len(ch.ready))] // any, so that a busy one does not starve others
			id = cq.id
			return cq.take(ch)
		})
		ch.mu.Unlock()
		switch {
		case errors.Is(err, context.Canceled):
			return nil, nil
		case err != nil:
			return nil, c.obj.fail("wait on", err)
		}
		if cq := c.ctx.registry.get(id).cq.Value(); cq != nil {
			return cq, nil
		}
	}
}

// canceledContext is a context that has ended.
var canceledContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// sleep implements [bridge.Sleep] for a CQ.
func (c *channel) sleep(ctx context.Context, until time.Time, cq *cqEvents) (events int, err error) {
	c.mu.Lock()
	if err = cq.err(); err == nil {
		c.sleeping = true
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	c.lastRead = 0
	err = c.file.Sleep(ctx, until, c.countEvents)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sleeping = false
	if events, c.injected = c.lastRead+c.injected, 0; events > 0 {
		return events, nil
	}
	return 0, cmp.Or(err, cq.err())
}

func init() {
	bridge.Sleep = func(cq any, ctx context.Context, until time.Time) (int, error) {
		q := cq.(*CQ)
		events, err := q.channel.ch.sleep(ctx, until, q.events)
		if err != nil && err != os.ErrDeadlineExceeded {
			err = q.obj.fail("wait on", err)
		}
		return events, err
	}
	bridge.Wake = func(cq any) { cq.(*CQ).channel.ch.Wake() }
}

// wait waits for an event of a CQ.
func (c *channel) wait(ctx context.Context, cq *cqEvents) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq.events == 0 && cq.err() == nil && c.group.Enter() {
		if err := c.waitAlone(ctx, cq); err != nil {
			return err
		}
		if cq.err() == nil && cq.take(c) {
			return nil
		}
	}
	var end error
	err := cq.pending.Wait(ctx, &c.mu, nil, func() bool {
		end = cq.err()
		return end != nil || cq.take(c)
	})
	return cmp.Or(err, end)
}

// waitAlone waits, for the only goroutine of the group, until the CQ has an event or an error. It
// saves the goroutine what the group needs to pass events on. The caller holds mu.
func (c *channel) waitAlone(ctx context.Context, cq *cqEvents) (err error) {
	defer c.group.Leave()
	c.sleeping = true
	for err == nil && cq.events == 0 && cq.err() == nil {
		c.mu.Unlock()
		err = c.file.Sleep(ctx, time.Time{}, c.readEvents)
		c.mu.Lock()
	}
	c.sleeping = false
	if cq.events > 0 {
		return nil
	}
	return err
}

// fail wakes the goroutines that wait for a CQ, which has overrun.
func (c *channel) fail(cq *cqEvents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cq.failed = true
	cq.pending.Signal()
	if c.sleeping {
		c.file.Wake()
	}
}

// take takes an event, if there is one. The caller holds c.mu.
func (cq *cqEvents) take(c *channel) bool {
	if cq.events == 0 {
		return false
	}
	cq.events--
	if cq.events == 0 {
		cq.unready(c)
	}
	return true
}

// discard drops the events. The caller holds c.mu.
func (cq *cqEvents) discard(c *channel) {
	if cq.events > 0 {
		cq.events = 0
		cq.unready(c)
	}
}

// unready takes the CQ out of c.ready.
func (cq *cqEvents) unready(c *channel) {
	last := len(c.ready) - 1
	c.ready[cq.at] = c.ready[last]
	c.ready[cq.at].at = cq.at
	c.ready[last] = nil
	c.ready = c.ready[:last]
}

// Arm, Sleep and Wake implement [event.Source].
func (c *channel) Arm() error { return nil }

func (c *channel) Sleep(ctx context.Context, until time.Time) error {
	return c.file.Sleep(ctx, until, c.readEvents)
}

func (c *channel) Wake() { c.file.Wake() }

// read reads events, reports them to the drivers that count them, and calls f with the CQ of each.
func (c *channel) read(fd int, buf *eventBuffer, f func(*cqEvents)) (events int, err error) {
	n, err := host.Read(fd, mmap.Bytes(buf))
	if err != nil {
		return 0, err
	}
	events = n / len(mmap.Bytes(&buf[0]))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range buf[:events] {
		cq := c.cqs[buf[i].CqHandle]
		if cq == nil { // it is closed
			continue
		}
		if cq.counter != nil {
			cq.counter.CountEvent()
		}
		f(cq)
	}
	return events, nil
}

// deliver passes an event to the goroutines that wait for it. The caller holds mu.
func (c *channel) deliver(cq *cqEvents) {
	if cq.events++; cq.events == 1 {
		cq.at = len(c.ready)
		c.ready = append(c.ready, cq)
	}
	if !c.group.Alone() {
		cq.pending.Signal()
		c.anyPending.Signal()
	}
}

// inject adds an event that does not come from the kernel.
func (c *channel) inject(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq := c.cqs[id]; cq != nil {
		c.deliver(cq)
	}
	c.injected++
	c.file.Wake() // ends sleep
}

// addCQ registers a CQ with the channel.
func (c *channel) addCQ(id uint64, counter provider.EventCounter) *cqEvents {
	cq := &cqEvents{id: id, counter: counter}
	cq.pending.Init(&c.group)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cqs[id] = cq
	return cq
}

// removeCQ removes a CQ and its events, and wakes the goroutines that wait for it.
func (c *channel) removeCQ(cq *cqEvents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cq.discard(c)
	delete(c.cqs, cq.id)
	cq.closed = true
	cq.pending.Signal()
	if c.sleeping {
		c.file.Wake()
	}
}

// retireCQ closes a CQ that no QP uses and discards its events, so that another CQ can have its
// number. The kernel may still have a request for an event. It makes one event for the next user's
// completions, as that user's own request would, or one too many if the user polls before it arms.
func (c *channel) retireCQ(cq *cqEvents) error {
	if c.busy() {
		return verbs.ErrInUse
	}
	if err := c.drain(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busyLocked() { // since drain
		return verbs.ErrInUse
	}
	cq.discard(c)
	c.injected = 0
	cq.closed, cq.retired = true, true
	return nil
}

// busy reports whether goroutines wait, or the program may take events.
func (c *channel) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busyLocked()
}

func (c *channel) busyLocked() bool { return c.exposed || c.sleeping || !c.group.Empty() }

// drain delivers the events in the kernel's file.
func (c *channel) drain() error {
	fd, err := c.file.Acquire()
	if err != nil {
		return err
	}
	defer c.file.Release()
	var buf eventBuffer
	for err == nil {
		_, err = c.read(fd, &buf, c.deliver)
	}
	if errors.Is(err, syscall.EAGAIN) {
		return nil
	}
	return err
}

// expose records that the program gets the CompChannel by a CQ, and reports whether it may: whether
// the CQ has not been retired.
func (c *channel) expose(cq *cqEvents) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exposed = c.exposed || !cq.retired
	return !cq.retired
}

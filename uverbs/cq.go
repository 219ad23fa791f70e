package uverbs

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"weak"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/spin"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// CQ is a completion queue, which is closed after its QPs.
type CQ struct {
	ctx     *Context
	obj     *object
	handle  uint32
	queue   provider.CompletionQueue
	common  *provider.Completions // of queue
	channel *CompChannel
	id      uint64
	events  *cqEvents     // nil without a channel
	waitSem chan struct{} // has a token while a goroutine is in pollArmWait; nil without a channel
	waits   spin.History  // of the goroutine that holds waitSem
	failed  atomic.Bool   // see overrun
}

// CQOptions contains options for [Context.CreateCQ].
type CQOptions struct {
	// Depth is the minimum number of completions that the CQ holds. A CQ that overflows fails, see
	// [CQ.PollWait]: leave room for every signaled request of its QPs, and every receive of its QPs
	// and SRQs.
	Depth   int
	Channel *CompChannel // delivers the CQ's events; without one it can only be polled
	Vector  int          // completion vector, less than [Context.CompVectors]
	// SingleThreaded disables the lock (IBV_CREATE_CQ_ATTR_SINGLE_THREADED of
	// ibv_create_cq_ex(3)): the program guarantees that calls of the CQ's methods, including
	// Close, do not overlap. Calls of its QPs may: for these mlx5 keeps a lock. A poll takes
	// half the time. If the device is lost, requests are not flushed to the CQ.
	SingleThreaded bool
	// Timestamps sets the Timestamp of completions (ibv_create_cq_ex(3)). rxe, siw and soft have
	// none, and the error matches errors.ErrUnsupported.
	Timestamps verbs.TimestampFormat
}

// CreateCQ makes a completion queue (ibv_create_cq(3)).
func (c *Context) CreateCQ(opt CQOptions) (*CQ, error) {
	const op = "create CQ"
	if opt.Depth < 1 || int(uint32(opt.Depth)) != opt.Depth || opt.Vector < 0 || int(uint32(opt.Vector)) != opt.Vector {
		return nil, c.obj.fail(op, fmt.Errorf("depth %d, vector %d: %w", opt.Depth, opt.Vector, syscall.EINVAL))
	}
	var flags uint32
	if opt.Timestamps != verbs.TimestampNone {
		if opt.Timestamps > verbs.TimestampRealTime {
			return nil, c.obj.fail(op, rangeError("Timestamps", int(opt.Timestamps), 0, int(verbs.TimestampRealTime)))
		}
		if _, ok := c.driverContext.(provider.Clock); !ok || c.dev.Attr.TimestampMask == 0 {
			return nil, c.obj.fail(op, errNoTimestamps)
		}
		flags |= abi.IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION
	}
	parents := []*object{c.obj}
	if opt.Channel != nil {
		if opt.Channel.ctx != c {
			return nil, c.obj.fail(op, fmt.Errorf("channel of another context: %w", syscall.EINVAL))
		}
		parents = append(parents, opt.Channel.obj)
	}
	if err := enterAll(op, parents); err != nil {
		return nil, err
	}
	defer exitAll(parents)

	core, id := c.contextCore, c.lastID.Add(1)
	cq := &CQ{ctx: c, channel: opt.Channel, id: id}
	init := &provider.CQInit{Depth: opt.Depth, Wake: func() {}, SingleThreaded: opt.SingleThreaded, Timestamps: opt.Timestamps}
	if opt.Channel != nil {
		events := opt.Channel.ch
		init.Wake = func() { events.inject(id) }
	}
	created := false
	queue, err := core.driverContext.CreateCQ(init, func(uhw provider.UHW) (provider.CQInfo, error) {
		channelFD := -1
		if opt.Channel != nil {
			fd, err := opt.Channel.ch.file.Acquire()
			if err != nil {
				return provider.CQInfo{}, err
			}
			defer opt.Channel.ch.file.Release()
			channelFD = fd
		}
		depth, vector, got := uint32(init.Depth), uint32(opt.Vector), uint32(0)
		err := core.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_CQ, Method: abi.UVERBS_METHOD_CQ_CREATE, Attrs: []sys.Attr{
			sys.New(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, &cq.handle),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_CQE, &depth),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, &id),
			sys.FD(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channelFD).If(opt.Channel != nil),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, &vector),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, &flags).If(flags != 0),
			sys.Out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, &got),
			sys.FD(abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD, core.loss.FD()), // whose events watch reads
			sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
			sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
		}})
		created = err == nil
		return provider.CQInfo{Handle: cq.handle, Depth: int(got)}, explainPins(err, uint64(uhw.Pins))
	})
	if err != nil {
		if created {
			core.destroy(kindCQ, cq.handle)
		}
		return nil, c.obj.failSize(op, err, "MaxCQ", core.dev.Attr.MaxCQ,
			limit{"Depth", opt.Depth, core.dev.Attr.MaxCQE}, limit{"Vector", opt.Vector, cmp.Or(c.CompVectors()-1, -1)})
	}
	cq.register(queue, parents)
	return cq, nil
}

// createWaitableCQ makes a CQ with a channel of its own.
func (c *Context) createWaitableCQ(depth int) (*CQ, error) {
	ch, err := c.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := c.CreateCQ(CQOptions{Depth: depth, Channel: ch})
	if err != nil {
		ch.Close()
	}
	return cq, err
}

// closeWithChannel closes a CQ of createWaitableCQ and its channel.
func (q *CQ) closeWithChannel() error {
	if err := q.Close(); err != nil {
		return err
	}
	return q.channel.Close()
}

// register sets the CQ's queue and registers the CQ with its parents.
func (q *CQ) register(queue provider.CompletionQueue, parents []*object) {
	q.queue, q.common = queue, queue.Common()
	id, ch := q.id, (*channel)(nil)
	if q.channel != nil {
		q.waitSem = make(chan struct{}, 1)
		counter, _ := queue.(provider.EventCounter)
		ch = q.channel.ch
		q.events = ch.addCQ(id, counter)
	}
	core, handle, events := q.ctx.contextCore, q.handle, q.events
	q.obj = newObject(core.device.Name, objectName{"CQ %d", handle}, func() error {
		if err := stopAndDestroy(func() error { return core.destroy(kindCQ, handle) }, queue); err != nil {
			return err
		}
		core.registry.remove(id)
		if ch != nil {
			ch.removeCQ(events)
		}
		return nil
	}, parents...)
	core.register(id, entry{obj: q.obj, cq: weak.Make(q)})
	addCleanup(q, q.obj)
}

func init() {
	bridge.RecycleCQ = func(cq any) (any, error) { return cq.(*CQ).recycle() }
	bridge.HasCompletions = func(cq any) bool { return cq.(*CQ).common.HasCompletions() }
}

// recycle implements [bridge.RecycleCQ].
func (q *CQ) recycle() (*CQ, error) {
	const op = "recycle"
	next := &CQ{ctx: q.ctx, channel: q.channel, handle: q.handle, id: q.id}
	err := q.obj.transfer(op, func(parents []*object) error {
		if q.failed.Load() {
			return errOverrun
		}
		if q.channel != nil {
			if err := q.channel.ch.retireCQ(q.events); err != nil {
				return err
			}
		}
		next.register(q.queue.Recycle(), parents)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return next, nil
}

// Channel returns the channel that delivers the CQ's events, or nil.
func (q *CQ) Channel() *CompChannel {
	if q.channel == nil || !q.channel.ch.expose(q.events) {
		return nil
	}
	return q.channel
}

// Cap returns the number of completions that the CQ holds.
func (q *CQ) Cap() int { return q.queue.Cap() }

// Arm requests one event for the next completion or, with solicitedOnly, for the next one that a
// peer solicited or that failed (ibv_req_notify_cq(3)). Completions that are already there cause no
// event: poll again before waiting. With solicitedOnly siw raises an event for any completion, and rxe
// none for one that failed.
func (q *CQ) Arm(solicitedOnly bool) error {
	if q.channel == nil {
		return q.obj.fail("arm", verbs.ErrNoChannel)
	}
	if err := q.queue.Arm(solicitedOnly); err != nil {
		return q.obj.fail("arm", err)
	}
	return nil
}

// Wait waits for the event that [CQ.Arm] requested (ibv_get_cq_event(3)). The completions that
// caused it may have been polled already.
func (q *CQ) Wait(ctx context.Context) error {
	err := verbs.ErrNoChannel
	if q.channel != nil {
		err = q.channel.ch.wait(ctx, q.events)
	}
	if err != nil {
		return q.obj.fail("wait on", err)
	}
	return nil
}

// PollWait is like [CQ.Poll] but waits until there is a completion; if it fails, it has taken none.
// Before it sleeps it polls for 10 µs, or for twice the time of recent waits if they took less than
// 50 µs and no other wait of the process polls that long. [CQ.Arm] and [CQ.Wait] do not poll.
//
// The error matches [verbs.ErrQueueFailed] if the CQ has overflowed, and so lost completions, and
// the remaining ones have been polled. [CQ.Wait] and [CQ.Next] fail alike. Programs that only poll
// get [verbs.EventCQErr] from [Context.AsyncEvents].
func (q *CQ) PollWait(ctx context.Context, wcs []verbs.WC) (int, error) {
	for {
		if n := q.Poll(wcs); n > 0 || len(wcs) == 0 {
			return n, nil
		}
		if n, err := q.pollArmWait(ctx, wcs); n > 0 || err != nil {
			return n, err
		}
	}
}

// Next waits for one completion and returns it. If its request failed, the error is a
// [*verbs.WCError]; after any other error no completion was taken.
func (q *CQ) Next(ctx context.Context) (verbs.WC, error) {
	var wcs [1]verbs.WC
	if _, err := q.PollWait(ctx, wcs[:]); err != nil {
		return verbs.WC{}, err
	}
	return wcs[0], wcs[0].Err()
}

// pollArmWait polls for a short time, and then arms the CQ and waits. One goroutine does so at a
// time, as the request makes one event for all of them. When the CQ is closed, each fails in turn.
func (q *CQ) pollArmWait(ctx context.Context, wcs []verbs.WC) (int, error) {
	const op = "wait on"
	if q.channel == nil {
		return 0, q.obj.fail(op, verbs.ErrNoChannel)
	}
	select {
	case q.waitSem <- struct{}{}:
		defer func() { <-q.waitSem }()
	case <-ctx.Done():
		return 0, q.obj.fail(op, host.Ended(ctx))
	}
	if q.failed.Load() {
		if n := q.Poll(wcs); n > 0 { // completions from before the failure
			return n, nil
		}
		return 0, q.obj.do(op, func() error { return errOverrun })
	}
	wait := q.waits.Wait(spin.Limit(q.ctx.device.Node, spin.MaxTime), true)
	defer wait.Done()
	for wait.More() {
		if n := q.Poll(wcs); n > 0 {
			return n, nil
		}
	}
	if err := q.Arm(false); err != nil {
		return 0, err
	}
	if n := q.Poll(wcs); n > 0 {
		return n, nil
	}
	if err := q.Wait(ctx); !q.failed.Load() {
		return 0, err
	}
	return 0, nil // there may be completions from before the failure
}

// Resize changes the size to at least depth completions, and keeps those in the CQ
// (ibv_resize_cq(3)). After [verbs.ErrQueueFailed] the CQ is unusable.
func (q *CQ) Resize(depth int) error {
	const op = "resize"
	if depth < 1 || int(uint32(depth)) != depth {
		return q.obj.fail(op, fmt.Errorf("depth %d: %w", depth, syscall.EINVAL))
	}
	if err := q.obj.enter(op); err != nil {
		return err
	}
	defer q.obj.exit()
	err := q.queue.Resize(depth, func(depth int, uhw provider.UHW) error {
		req := abi.IbUverbsResizeCq{CqHandle: q.handle, Cqe: uint32(depth)}
		var resp abi.IbUverbsResizeCqResp
		err := q.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_RESIZE_CQ, mmap.Bytes(&req), mmap.Bytes(&resp)[:8], uhw.In, uhw.Out)
		return explainPins(err, uint64(uhw.Pins))
	})
	if err != nil {
		return q.obj.failSize(op, err, "", 0, limit{"depth", depth, q.ctx.dev.Attr.MaxCQE})
	}
	return nil
}

// Moderate requests at most one event per count completions or period µs (ibv_modify_cq(3)). rxe
// and siw do not support it.
func (q *CQ) Moderate(count, period uint16) error {
	const moderate = 1 << 0 // enum ib_cq_attr_mask
	req := abi.IbUverbsExModifyCq{CqHandle: q.handle, AttrMask: moderate, Attr: abi.IbUverbsCqModeration{CqCount: count, CqPeriod: period}}
	return q.obj.do("moderate", func() error {
		return q.ctx.file.Invoke(abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, mmap.Bytes(&req), nil, nil, nil)
	})
}

// Close destroys the CQ, and ends calls that wait. It fails while QPs use it.
func (q *CQ) Close() error {
	if q == nil {
		return verbs.ErrClosed
	}
	return q.obj.close()
}

package uverbs

import (
	"context"
	"iter"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// AsyncEvent is an event that does not belong to a work request. At most one of QP, CQ,
// SRQ and Port is set. None is set if the event concerns the device, or if its object has
// been closed.
type AsyncEvent struct {
	Type verbs.AsyncEventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int
}

// AsyncEvents yields the device's asynchronous events until ctx ends, the Context is
// closed, or the loop is left. An error is yielded last.
func (c *Context) AsyncEvents(ctx context.Context) iter.Seq2[AsyncEvent, error] {
	return func(yield func(AsyncEvent, error) bool) {
		for {
			e, err := c.NextAsyncEvent(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// NextAsyncEvent waits for the next asynchronous event of the device. Several goroutines
// may wait; each event is returned to one of them. No event follows [verbs.EventDeviceFatal] of a
// device that has been removed. Queues fail without a call of NextAsyncEvent.
func (c *Context) NextAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "wait for asynchronous event"
	select {
	case c.asyncSem <- struct{}{}:
		defer func() { <-c.asyncSem }()
	case <-ctx.Done():
		return AsyncEvent{}, c.obj.fail(op, ctx.Err())
	}
	var desc abi.IbUverbsAsyncEventDesc
	err := c.async.Sleep(ctx, time.Time{}, func(fd int) error {
		_, err := host.Read(fd, mmap.Bytes(&desc))
		return err
	})
	if err != nil {
		return AsyncEvent{}, c.obj.fail(op, err)
	}
	e := AsyncEvent{Type: verbs.AsyncEventType(desc.EventType)}
	switch e.Type {
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange, verbs.EventClientReregister, verbs.EventGIDChange:
		e.Port = int(desc.Element)
	default:
		t := c.registry.get(desc.Element)
		e.QP, e.CQ, e.SRQ = t.qp.Value(), t.cq.Value(), t.srq.Value()
	}
	return e, nil
}

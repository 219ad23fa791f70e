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

// AsyncEvent is an event of a QP, a CQ, an SRQ or a Port. None of them is set in events of the
// device and of objects that have been closed.
type AsyncEvent struct {
	Type verbs.AsyncEventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int
}

// AsyncEvents yields asynchronous events until ctx ends or the device fails, and then the error.
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

// NextAsyncEvent waits for the device's next asynchronous event. No event follows
// [verbs.EventDeviceFatal] of a device that was removed.
func (c *Context) NextAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "wait for asynchronous event"
	select {
	case c.asyncSem <- struct{}{}:
		defer func() { <-c.asyncSem }()
	case <-ctx.Done():
		return AsyncEvent{}, c.obj.fail(op, host.Ended(ctx))
	}
	var desc abi.IbUverbsAsyncEventDesc
	for got := false; !got; {
		if desc.Element, got = c.overruns.take(); got {
			desc.EventType = uint32(verbs.EventCQErr)
			break
		}
		err := c.async.Sleep(ctx, time.Time{}, func(fd int) error {
			_, err := host.Read(fd, mmap.Bytes(&desc))
			got = err == nil
			return err
		})
		if err != nil {
			return AsyncEvent{}, c.obj.fail(op, err)
		}
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

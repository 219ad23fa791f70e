package uverbs

import (
	"context"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// watch fails CQs that have overrun, and ends when the Context is closed or the device is lost;
// then it fails the device's queues first. The kernel reports the loss as it destroys the
// event files, after all newer objects (__uverbs_cleanup_ufile), so it no longer touches the queues.
func (c *contextCore) watch() {
	defer close(c.watched)
	var desc abi.IbUverbsAsyncEventDesc
	for verbs.AsyncEventType(desc.EventType) != verbs.EventDeviceFatal {
		err := c.loss.Sleep(context.Background(), time.Time{}, func(fd int) error {
			_, err := host.Read(fd, mmap.Bytes(&desc))
			return err
		})
		if err != nil {
			return
		}
		if verbs.AsyncEventType(desc.EventType) == verbs.EventCQErr {
			c.overrun(desc.Element)
		}
	}
	c.lost.Store(true)
	c.lose()
	c.registry.letGo()
}

// register adds an object to the registry. It fails the object's queues if the device is lost.
func (c *contextCore) register(id uint64, e entry) {
	c.registry.add(id, e)
	if c.lost.Load() {
		c.lose()
	}
}

// lose makes posting fail, and completes the requests of the lost device, for programs that poll.
// The kernel completes none of them; it only fails waits. lose may be called again.
func (c *contextCore) lose() {
	entries := c.registry.all()
	// Some kernel drivers complete the requests themselves, such as siw.
	if !slices.ContainsFunc(entries, flushes) {
		return
	}
	var cqs []*CQ
	rest := map[*CQ][]verbs.WC{}
	for _, e := range entries {
		if q := e.cq.Value(); q != nil && !q.common.SingleThreaded {
			cqs = append(cqs, q)
			provider.Drain(q.queue) // the device's completions come first, and are not flushed
		}
	}
	flush := func(q any) []verbs.WC {
		if f, ok := q.(provider.Flusher); ok {
			return f.Flush()
		}
		return nil
	}
	for _, e := range entries {
		q := e.qp.Value()
		if q == nil {
			continue
		}
		rest[q.sendCQ] = append(rest[q.sendCQ], flush(q.send)...)
		recvs := flush(q.recv)
		if q.srq != nil { // the first of its QPs gets all receives
			recvs = flush(q.srq.queue)
			for i := range recvs {
				recvs[i].QPNum = q.Num()
			}
		}
		rest[q.recvCQ] = append(rest[q.recvCQ], recvs...)
	}
	for _, e := range entries {
		if s := e.srq.Value(); s != nil {
			flush(s.queue) // it may have no QP
		}
	}
	for _, q := range cqs {
		q.common.Detach(rest[q])
	}
}

// flushes reports whether the driver knows which requests of a QP or SRQ have not completed.
func flushes(e entry) bool {
	var q any
	if qp := e.qp.Value(); qp != nil {
		q = qp.send
	} else if srq := e.srq.Value(); srq != nil {
		q = srq.queue
	}
	_, ok := q.(provider.Flusher)
	return ok
}

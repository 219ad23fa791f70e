package uverbs

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
)

var errOverrun = fmt.Errorf("%w: it has overrun, completions are lost: make it with a larger Depth, or poll more often", verbs.ErrQueueFailed)

// overruns contains the numbers of CQs whose failure the program has not been told yet. It has each
// CQ once, although the kernel reports every completion that it loses.
type overruns struct {
	mu  sync.Mutex
	cqs []uint64
}

func (o *overruns) take() (id uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.cqs) == 0 {
		return 0, false
	}
	id, o.cqs = o.cqs[0], o.cqs[1:]
	return id, true
}

// overrun fails a CQ, and tells the goroutines that wait for it, use its QPs, or read the device's
// events.
func (c *contextCore) overrun(id uint64) {
	cq := c.registry.get(id).cq.Value()
	if cq == nil || cq.failed.Swap(true) {
		return
	}
	if cq.channel != nil {
		cq.channel.ch.fail(cq.events)
	}
	for _, e := range c.registry.all() {
		if q := e.qp.Value(); q != nil {
			q.checkOverrun()
		}
	}
	c.overruns.mu.Lock()
	c.overruns.cqs = append(c.overruns.cqs, id)
	c.overruns.mu.Unlock()
	c.async.Wake()
}

func init() {
	bridge.OnOverrun = func(qp any, f func(error)) {
		q := qp.(*QP)
		q.onOverrun.Store(&f)
		q.checkOverrun()
	}
}

// checkOverrun calls the function of [bridge.OnOverrun] if one of the QP's CQs has failed.
func (q *QP) checkOverrun() {
	f := q.onOverrun.Load()
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if f != nil && cq.failed.Load() {
			(*f)(cq.obj.fail("use", errOverrun))
		}
	}
}

package engine

import (
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/unix"
)

// CQ is a completion queue.
type CQ struct {
	dev    *Device
	notify func()
	event  func(verbs.AsyncEventType)
	use    useCount

	mu        sync.Mutex
	ring      *Ring
	armed     bool // for any completion
	solicited bool // armed for solicited completions
	ended     bool
}

func (d *Device) createCQ(init CQInit) (*CQ, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if init.Entries <= 0 || init.Entries > maxCQE {
		return nil, unix.EINVAL
	}
	if d.cqs.Add(1) > maxCQ {
		d.cqs.Add(-1)
		return nil, unix.ENOMEM
	}
	return &CQ{dev: d, notify: init.Notify, event: init.Event, ring: newRing(init.Entries, cqeSize)}, nil
}

func (cq *CQ) currentRing() *Ring {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.ring
}

func (cq *CQ) arm(solicitedOnly bool) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.ended {
		return unix.EINVAL
	}
	if solicitedOnly {
		cq.solicited = true
	} else {
		cq.armed = true
	}
	return nil
}

// post adds a completion (rxe_cq_post). If there is no room it reports an event and
// returns false.
func (cq *CQ) post(wc *abi.IbUverbsWc, solicited bool) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.ended {
		return false
	}
	r := cq.ring
	if r.full() {
		if cq.event != nil {
			cq.event(verbs.EventCQErr)
		}
		return false
	}
	*r.cqe(r.index) = *wc
	r.produce()
	if cq.armed || cq.solicited && solicited {
		cq.armed, cq.solicited = false, false
		if cq.notify != nil {
			cq.notify()
		}
	}
	return true
}

// resize moves the completions that the program has not taken to a new ring.
func (cq *CQ) resize(entries int) error {
	if err := cq.dev.usable(); err != nil {
		return err
	}
	if entries <= 0 || entries > maxCQE {
		return unix.EINVAL
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	r := cq.ring
	if cq.ended || entries < r.produced() {
		return unix.EINVAL
	}
	to := newRing(entries, cqeSize)
	to.index = r.moveTo(to, r.cons.Load()&r.mask, r.index)
	to.prod.Store(to.index)
	r.cons.Store(r.index)
	cq.ring = to
	return nil
}

func (cq *CQ) destroy() error {
	if err := cq.use.end(); err != nil {
		return err
	}
	cq.mu.Lock()
	cq.ended = true
	cq.mu.Unlock()
	cq.dev.cqs.Add(-1)
	return nil
}

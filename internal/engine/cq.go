package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// CQ is a completion queue.
type CQ struct {
	dev     *Device
	notify  func()
	event   func(verbs.AsyncEventType)
	deliver func(Completion) bool
	use     useCount

	mu        sync.Mutex
	ring      *Ring
	armed     bool // for any completion
	solicited bool // armed for solicited completions
	ended     bool
}

// CQInit describes a CQ.
type CQInit struct {
	Entries int
	Notify  func()                     // called once for each Arm, when a completion arrives
	Event   func(verbs.AsyncEventType) // called for [verbs.EventCQErr]
	// Deliver, if not nil, is called for each completion, with the QP locked. The CQ has no ring
	// then, and neither Entries, Notify nor Event has a meaning. It reports whether there was room.
	Deliver func(Completion) bool
}

// CreateCQ makes a completion queue. It fails with EINVAL if Entries is out of range.
func (d *Device) CreateCQ(init CQInit) (*CQ, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if init.Deliver == nil && (init.Entries <= 0 || init.Entries > maxCQE) {
		return nil, syscall.EINVAL
	}
	if d.cqs.Add(1) > maxCQ {
		d.cqs.Add(-1)
		return nil, syscall.ENOMEM
	}
	cq := &CQ{dev: d, notify: init.Notify, event: init.Event, deliver: init.Deliver}
	if cq.deliver == nil {
		cq.ring = newRing(init.Entries, cqeSize)
	}
	return cq, nil
}

// Ring returns the queue of completions, whose elements are abi.IbUverbsWc, or nil if the CQ has
// Deliver.
func (cq *CQ) Ring() *Ring {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.ring
}

// Arm requests a call of Notify for the next completion, or the next solicited or failed one.
// Completions already in the queue do not count, so a program polls once more after arming.
func (cq *CQ) Arm(solicitedOnly bool) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.ended {
		return syscall.EINVAL
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

// Resize moves the completions to a new ring, which Ring returns from then on. It fails
// with EINVAL if they do not fit.
func (cq *CQ) Resize(entries int) error {
	if err := cq.dev.usable(); err != nil {
		return err
	}
	if entries <= 0 || entries > maxCQE {
		return syscall.EINVAL
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	r := cq.ring
	if cq.ended || r == nil || entries < r.produced() {
		return syscall.EINVAL
	}
	to := newRing(entries, cqeSize)
	to.index = r.moveTo(to, r.cons.Load()&r.mask, r.index)
	to.prod.Store(to.index)
	r.cons.Store(r.index)
	cq.ring = to
	return nil
}

// Destroy ends the CQ. It fails with EBUSY while QPs use it.
func (cq *CQ) Destroy() error {
	if err := cq.use.end(); err != nil {
		return err
	}
	cq.mu.Lock()
	cq.ended = true
	cq.mu.Unlock()
	cq.dev.cqs.Add(-1)
	return nil
}

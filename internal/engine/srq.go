package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
)

// SRQ is a shared receive queue: QPs take receives from it in the order of their messages, so a
// server with many connections posts receives for the messages that come, not for each connection's
// most.
type SRQ struct {
	dev    *Device
	pd     *PD
	num    uint32
	maxSGE int
	event  func(verbs.AsyncEventType)
	refill func(*Ring)
	use    useCount

	mu    sync.Mutex
	ring  *Ring
	limit int
	ended bool
}

// SRQInit describes an SRQ.
type SRQInit struct {
	MaxWR, MaxSGE int
	Limit         int
	Event         func(verbs.AsyncEventType) // called for [verbs.EventSRQLimitReached]
	// Refill, if not nil, is called with the SRQ locked when the ring is empty or, if a limit is
	// set, before receives are counted, to add requests by NextRecv and Publish.
	Refill func(*Ring)
}

// CreateSRQ makes a shared receive queue.
func (pd *PD) CreateSRQ(init SRQInit) (*SRQ, error) {
	sges := maxSRQSGE
	if init.Refill != nil {
		sges = feedSGE
	}
	if init.MaxWR <= 0 || init.MaxWR > maxSRQWR || init.MaxSGE < 0 || init.MaxSGE > sges {
		return nil, syscall.EINVAL
	}
	s := &SRQ{dev: pd.dev, pd: pd, maxSGE: max(init.MaxSGE, 1), limit: init.Limit, event: init.Event, refill: init.Refill}
	s.ring = newRing(init.MaxWR, recvSize(s.maxSGE))
	return hold(pd, s, func() bool { return pd.dev.srqs.add(s, &s.num, minSRQNum, maxValue) })
}

func recvSize(n int) int { return recvWQESize + n*sgeSize }

// Ring returns the queue of receives, whose elements are abi.RxeRecvWqe.
func (s *SRQ) Ring() *Ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring
}

// Num returns the SRQ's number.
func (s *SRQ) Num() uint32 { return s.num }

// Query returns the number of work requests and SGEs that the queue takes, and the limit
// that is set.
func (s *SRQ) Query() (maxWR, maxSGE, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring.Cap(), s.maxSGE, s.limit
}

// Resize moves the receives to a new ring, which Ring returns from then on.
func (s *SRQ) Resize(maxWR int) error {
	if err := s.dev.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ring
	prod := r.producer()
	if s.ended || maxWR <= 0 || maxWR > maxSRQWR || maxWR < s.limit || maxWR < r.used() {
		return syscall.EINVAL
	}
	to := newRing(maxWR, recvSize(s.maxSGE))
	to.prod.Store(r.moveTo(to, r.index, prod))
	r.index = prod
	r.cons.Store(prod)
	s.ring = to
	return nil
}

// SetLimit sets the limit: an event is reported once, when fewer receives are left.
func (s *SRQ) SetLimit(limit int) error {
	if err := s.dev.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || limit < 0 || limit > s.ring.Cap() {
		return syscall.EINVAL
	}
	s.limit = limit
	return nil
}

// take copies the next receive to r and frees its element. It reports the event once there are
// fewer than the limit.
func (s *SRQ) take(r *receive) takeResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 && s.refill != nil {
		s.refill(s.ring)
	}
	if s.ring.empty(s.refill) {
		return takeEmpty
	}
	if !r.load(s.ring, s.maxSGE) {
		return takeMalformed
	}
	s.ring.consume()
	// The event is reported once: the program sets the limit again when it has posted more
	// (get_srq_wqe).
	if s.limit > 0 && s.ring.used() < s.limit {
		s.limit = 0
		if s.event != nil {
			s.event(verbs.EventSRQLimitReached)
		}
	}
	return takeOK
}

// Destroy ends the SRQ. It fails with EBUSY while QPs use it.
func (s *SRQ) Destroy() error {
	if err := s.use.end(); err != nil {
		return err
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.dev.srqs.remove(s.num)
	s.pd.use.put()
	return nil
}

package engine

import "time"

// lag tells a QP whose answer is late whether the answer has arrived and waits for this slow
// machine. Then the packet is not lost, and repeating it would not help.
type lag struct {
	marked   bool
	position uint64 // behind what had arrived at first
	laps     uint8  // positions that have been reached
}

// minLagCheck is how long to wait at least before the position is compared again.
const minLagCheck = time.Millisecond

// caughtUp reports whether all packets have been processed that had arrived at its first call. The
// device's own answers are behind the request in the work queue, which takes two laps.
func (q *requester) caughtUp() bool {
	l := &q.comp.lag
	laps := uint8(1)
	if q.qp.path.local {
		laps = 2
	}
	for ; l.laps < laps; l.laps++ {
		if !l.marked {
			l.marked, l.position = true, q.arrived()
		}
		if !q.processed(l.position) {
			return false
		}
		l.marked = false
	}
	*l = lag{}
	return true
}

// arrived returns the position behind all packets that have arrived where answers come from.
func (q *requester) arrived() uint64 {
	p := q.qp.path
	switch {
	case p.local:
		return q.qp.dev.work.counts().pushed
	case p.port.queue != nil:
		return p.port.queue.Arrived()
	}
	return 0
}

// processed reports whether the packets before a position have been processed.
func (q *requester) processed(position uint64) bool {
	p := q.qp.path
	switch {
	case p.local:
		return q.qp.dev.work.counts().handled >= position
	case p.port.queue != nil:
		return p.port.queue.Handled(position)
	}
	return true
}

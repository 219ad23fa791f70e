package engine

import "time"

// lag is how a QP whose answer is late finds out whether that has arrived and this machine is too
// slow to process it. Neither is the packet lost then, nor would sending it again help.
type lag struct {
	marked   bool
	position uint64 // behind what had arrived at first
	laps     uint8  // positions that have been reached
}

// minLagCheck is how long to wait at least before the position is compared again.
const minLagCheck = time.Millisecond

// caughtUp reports whether all has been processed that had arrived when it was called first. The
// answer of the device itself is behind the request in the work queue, which takes two laps.
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

//go:build linux

package pcidev

import "sync"

// IndexMask is the range of the indexes that doorbells of CQs name: they count on over rounds, in 24 bits.
const IndexMask = 0xffffff

// After reports whether index a is behind index b, modulo 24 bits.
func After(a, b uint32) bool {
	ahead := (a - b) & IndexMask
	return ahead > 0 && ahead <= IndexMask/2
}

// EventQueue is a queue of events. An event is an entry in a ring, which the driver knows as new by its
// owner bit, and an interrupt.
type EventQueue struct {
	Interrupt func(vector int)
	Vector    int
	Mask      uint32 // of indexes in doorbells

	Mu     sync.Mutex
	Ring   Ring   // unmapped when the queue has been destroyed
	PI, CI uint32 // indexes of the producer and of the consumer
}

// Post adds an event, whose entry write fills in, and interrupts the driver. The callers hold locks of
// CQs and of the engine: it takes the queue's, and with that those of the bus and of write. It reports
// false if there is no room, for which drivers make their queues large enough.
func (q *EventQueue) Post(write func(r *Ring, i uint32)) bool {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	if q.Ring.View == nil || q.PI-q.CI >= q.Ring.Count {
		return false
	}
	write(&q.Ring, q.PI)
	q.PI++
	q.Interrupt(q.Vector)
	return true
}

// Doorbell takes the driver's consumer index, and interrupts the driver again if it arms a queue that
// has more events.
func (q *EventQueue) Doorbell(index uint32, arm bool) {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	// One behind the last, or ahead of the producer index, is ignored.
	if ci := q.PI - (q.PI-index)&q.Mask; q.PI-ci <= q.PI-q.CI {
		q.CI = ci
	}
	if arm && q.PI != q.CI {
		q.Interrupt(q.Vector)
	}
}

// Close ends the queue. After it, nothing writes to the queue's memory.
func (q *EventQueue) Close() {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	q.Ring.Unmap()
}

// Arming is which entry of a CQ raises an event.
type Arming struct {
	State     ArmState
	Solicited uint32 // index behind the last solicited entry
	Notified  uint32 // producer index at the last event
}

// ArmState is what a CQ is armed for.
type ArmState uint8

const (
	NotArmed ArmState = iota
	ArmedSolicited
	ArmedAny
)

// Arm arms the CQ for an entry, or a solicited entry, from index ci on. It reports whether there is one
// before the producer index pi already. Entries of before the last event raise no other: perftest arms
// the queue before it takes the entries, and does not expect an event for them.
func (a *Arming) Arm(pi, ci uint32, solicitedOnly bool) (fire bool) {
	a.State = ArmedAny
	last := pi
	if solicitedOnly {
		a.State, last = ArmedSolicited, a.Solicited
	}
	return After(last, ci) && After(last, a.Notified)
}

// Due reports whether the CQ is armed for its last entry, before the producer index pi. It is called for each entry.
func (a *Arming) Due(pi uint32) bool {
	for _, i := range []*uint32{&a.Solicited, &a.Notified} {
		if (pi-*i)&IndexMask > maxEntries { // or it would come to be ahead
			*i = pi - maxEntries
		}
	}
	return a.State == ArmedAny || a.State == ArmedSolicited && a.Solicited == pi
}

// maxEntries is the size of the largest CQ.
const maxEntries = 1 << 22

// Fired disarms the CQ, as it raises the event.
func (a *Arming) Fired(pi uint32) { a.State, a.Notified = NotArmed, pi }

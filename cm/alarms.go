package cm

import (
	"sync"
	"time"
)

// alarms wake goroutines that wait in queues of a manager, each at its time. One timer serves all,
// and stays as it is when a wait ends early, as nearly all do: for each timer that is earlier than all
// others, as a context for each step of a connection has, the runtime wakes a thread.
type alarms struct {
	mu    sync.Mutex
	times map[*queue]time.Time
	timer *time.Timer
	next  time.Time // when timer fires; zero if it does not
}

func (a *alarms) init() { a.times = map[*queue]time.Time{} }

// set wakes the goroutine in q.next at the time t.
func (a *alarms) set(q *queue, t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[q] = t
	a.start(t)
}

func (a *alarms) clear(q *queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.times, q)
}

// start makes the timer fire at t, or earlier. The caller holds mu.
func (a *alarms) start(t time.Time) {
	if !a.next.IsZero() && !t.Before(a.next) {
		return
	}
	a.next = t
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(t), a.ring)
	} else {
		a.timer.Reset(time.Until(t))
	}
}

func (a *alarms) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := time.Now(), time.Time{}
	for q, t := range a.times {
		switch {
		case !now.Before(t):
			delete(a.times, q)
			q.wake()
		case next.IsZero() || t.Before(next):
			next = t
		}
	}
	a.next = time.Time{}
	if !next.IsZero() {
		a.start(next)
	}
}

// stop is called when the manager closes: no queue waits any more.
func (a *alarms) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}

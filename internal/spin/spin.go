// Package spin decides how long a wait busy-polls before it sleeps.
//
// To sleep and be woken takes a thread from ten to a thousand times as long as a
// poll, so a wait that will be short should poll. Earlier waits predict the next
// one: it polls for twice as long as they took. When waits become too long for
// polling, polling soon costs almost nothing again.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Least is how long every wait polls, as C's rsockets do, if there are several
// processors. On a single processor, events come only while the wait sleeps.
const Least = 10 * time.Microsecond

// several is set if there were several processors at the start. Only a wait that would
// poll for longer than Least checks again: GOMAXPROCS takes a lock.
var several = runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) > 1

// turn is held by the wait that polls for longer than Least, one in the process: it
// occupies a processor.
var turn atomic.Bool

// Usual is the average time that recent waits of one kind have taken. The caller must
// guard it with a lock.
type Usual struct{ took time.Duration }

// Wait begins a wait that polls for at most most, or for at most Least if measure is
// false, which means that earlier waits do not predict this one.
func (u *Usual) Wait(most time.Duration, measure bool) Wait {
	w := Wait{usual: u, begin: time.Now(), most: most}
	if !several {
		return w
	}
	w.limit = min(Least, most)
	if measure && u.took > 0 && u.took <= most && 2*u.took > w.limit && runtime.GOMAXPROCS(0) > 1 && turn.CompareAndSwap(false, true) {
		w.turn, w.limit = true, min(2*u.took, most)
	}
	return w
}

// Wait is one wait. The caller must end it with Done.
type Wait struct {
	usual       *Usual
	begin       time.Time
	most, limit time.Duration
	turn        bool
}

// More reports whether to poll again. After it has returned false, the caller should sleep.
func (w *Wait) More() bool {
	if time.Since(w.begin) < w.limit {
		relax()
		return true
	}
	w.rest()
	return false
}

// Done ends the wait.
func (w *Wait) Done() {
	w.rest()
	took := min(time.Since(w.begin), 2*w.most)
	if w.usual.took == 0 {
		w.usual.took = took
	}
	w.usual.took += (took - w.usual.took) / 4
}

func (w *Wait) rest() {
	w.limit = 0
	if w.turn {
		w.turn = false
		turn.Store(false)
	}
}

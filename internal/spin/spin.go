// Package spin says how long a wait looks for what it waits for before it sleeps.
//
// Going to sleep and being woken takes a thread from ten to a thousand times as
// long as looking, so a wait that will be short had better look. Whether it will
// be, the waits before it tell: it looks for twice as long as those took. Waits
// that have become too long for that soon cost next to nothing again.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Least is how long every wait looks, as C's rsockets do, if there are several
// processors: on one, what is waited for comes when the wait sleeps.
const Least = 10 * time.Microsecond

// several is whether there were several processors at the start. Only looking for
// longer than Least is worth asking again: GOMAXPROCS takes a lock.
var several = runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) > 1

// turn is held by who looks for longer than Least, one in the process: it keeps
// a processor from others.
var turn atomic.Bool

// Usual is how long waits of one kind have lately taken. It needs the lock of
// whoever waits.
type Usual struct{ took time.Duration }

// Wait begins a wait, which looks for at most most: or for Least at most if the
// waits before it are no measure.
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

// Wait is one wait, which somebody ends with Done.
type Wait struct {
	usual       *Usual
	begin       time.Time
	most, limit time.Duration
	turn        bool
}

// More says whether to go on looking. Once it has said no it is time to sleep.
func (w *Wait) More() bool {
	if time.Since(w.begin) < w.limit {
		relax()
		return true
	}
	w.rest()
	return false
}

// Done is the end of the wait.
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

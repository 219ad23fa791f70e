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

	"github.com/goverbs/verbs/internal/unix"
)

// MinTime is how long every wait polls, as C's rsockets do, if there are several
// processors. On a single processor, events come only while the wait sleeps.
const MinTime = 10 * time.Microsecond

// MaxTime is a limit for waits whose caller has set none: a processor that sleeps, and the
// thread that it runs then, are woken in less than this time.
const MaxTime = 50 * time.Microsecond

// yieldAfter is how long a wait polls before it also lets other threads run after each poll.
// Those may be the kernel's: a software driver, which cannot bring the completion while the
// processors poll for it. Fast answers need none.
const yieldAfter = 4 * time.Microsecond

// multiCPU is set if there were several processors at the start. Only a wait that would
// poll for longer than MinTime checks again: GOMAXPROCS takes a lock.
var multiCPU = runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) > 1

// longSpin is held by the wait that polls for longer than MinTime, one in the process: it
// occupies a processor.
var longSpin atomic.Bool

// History is the average time that recent waits of one kind have taken. The caller must
// guard it with a lock.
type History struct{ avg time.Duration }

// Wait begins a wait that polls for at most maxTime, or for at most MinTime if measure is
// false, which means that earlier waits do not predict this one.
func (h *History) Wait(maxTime time.Duration, measure bool) Wait {
	w := Wait{history: h, begin: time.Now(), maxTime: maxTime}
	if !multiCPU {
		return w
	}
	w.limit = min(MinTime, maxTime)
	if measure && h.avg > 0 && h.avg <= maxTime && 2*h.avg > w.limit && runtime.GOMAXPROCS(0) > 1 && longSpin.CompareAndSwap(false, true) {
		w.long, w.limit = true, min(2*h.avg, maxTime)
	}
	return w
}

// Wait is one wait. The caller must end it with Done.
type Wait struct {
	history        *History
	begin          time.Time
	maxTime, limit time.Duration
	long           bool
	polls          int // while the clock has not moved
}

// maxStill is the number of polls after which a clock that has not moved is taken for that of
// testing/synctest, which moves only while all goroutines sleep.
const maxStill = 1000

// More reports whether to poll again. After it has returned false, the caller should sleep.
func (w *Wait) More() bool {
	if took := time.Since(w.begin); took < w.limit && (took > 0 || w.polls < maxStill) {
		w.polls++
		if took > yieldAfter {
			unix.SchedYield()
		}
		relax()
		return true
	}
	w.stop()
	return false
}

// Done ends the wait.
func (w *Wait) Done() {
	w.stop()
	took := min(time.Since(w.begin), 2*w.maxTime)
	if w.history.avg == 0 {
		w.history.avg = took
	}
	w.history.avg += (took - w.history.avg) / 4
}

func (w *Wait) stop() {
	w.limit = 0
	if w.long {
		w.long = false
		longSpin.Store(false)
	}
}

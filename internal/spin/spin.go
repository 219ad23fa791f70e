// Package spin decides how long a wait busy-polls before it sleeps.
//
// To sleep and be woken takes a thread from ten to a thousand times as long as a poll, so a wait
// that will be short should poll. Earlier waits predict the next one: it polls for twice as long as
// they took. When waits become too long for polling, polling soon costs almost nothing again. While
// other programs want the processors, no wait polls.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
)

// MinTime is how long every wait polls, as C's rsockets do, if there are several
// processors, and not busy. On a single processor, events come only while the wait sleeps.
const MinTime = 10 * time.Microsecond

// MaxTime is the limit for waits whose caller sets none: waking a sleeping processor, and then the
// thread, takes less time.
const MaxTime = 50 * time.Microsecond

// Limit returns the limit for waits on a device: maxTime, or zero if waits may not poll.
func Limit(node string, maxTime time.Duration) time.Duration {
	if host.Spins(node) {
		return maxTime
	}
	return 0
}

// yieldAfter is how long a wait polls before it also lets other threads run after each poll:
// perhaps the kernel's, in which a software driver makes the completion. Fast answers need no such
// pause.
const yieldAfter = 4 * time.Microsecond

// multiCPU is set if there were several processors at the start. Only a wait that would
// poll for longer than MinTime checks again: GOMAXPROCS takes a lock.
var multiCPU = runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) > 1

// longSpin is held by the wait that polls for longer than MinTime, one in the process: it
// occupies a processor.
var longSpin atomic.Bool

// slice is how long a wait may lose the processor between two polls before that shows that other
// programs want it. Interrupts, and threads that make the completion, take less; a program that
// computes takes a time slice of at least a millisecond.
var slice = 500 * time.Microsecond

// rest is how long no wait polls after one has lost the processor, in multiples of the time lost.
// A thread that sleeps gets the processor as soon as it is woken, but one that polls uses its
// share like those that compute, and then waits until they have had theirs, which takes longer
// than all that polling has saved. So trying it again costs less than a hundredth.
const rest = 128

// maxRest bounds the rest, for processes that were stopped.
const maxRest = 10 * time.Second

// busyUntil is the time since start until which no wait of the process polls.
var busyUntil atomic.Int64

var start = time.Now()

// busy reports whether no wait may poll. A time beyond maxRest comes from another clock, such as
// testing/synctest's.
func busy(now time.Time) bool {
	left := time.Duration(busyUntil.Load()) - now.Sub(start)
	return left > 0 && left <= maxRest
}

// History is the average time that recent waits of one kind have taken. The caller must
// guard it with a lock.
type History struct{ avg time.Duration }

// Wait begins a wait that polls for at most maxTime, or for at most MinTime if measure is
// false, which means that earlier waits do not predict this one.
func (h *History) Wait(maxTime time.Duration, measure bool) Wait {
	w := Wait{history: h, begin: time.Now(), maxTime: maxTime}
	if !multiCPU || busy(w.begin) {
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
	last           time.Duration // when More was called last
	long           bool
	polls          int // while the clock has not moved
}

// maxStill is the number of polls after which a clock that stands still counts as
// testing/synctest's, which moves only while all goroutines sleep.
const maxStill = 1000

// More reports whether to poll again. After it has returned false, the caller should sleep.
func (w *Wait) More() bool {
	took := time.Since(w.begin)
	w.look(took)
	if took < w.limit && (took > 0 || w.polls < maxStill) {
		w.polls++
		if took > yieldAfter {
			sys.Yield()
		}
		relax()
		return true
	}
	w.stop()
	return false
}

// look ends polling, also of later waits, if this one has lost the processor since the last look.
func (w *Wait) look(took time.Duration) {
	if gap := took - w.last; gap > slice && w.limit > 0 {
		busyUntil.Store(int64(w.begin.Sub(start) + took + min(rest*gap, maxRest)))
		w.limit = 0
	}
	w.last = took
}

// Done ends the wait.
func (w *Wait) Done() {
	took := time.Since(w.begin)
	w.look(took)
	w.stop()
	took = min(took, 2*w.maxTime)
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

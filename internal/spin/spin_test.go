package spin

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// pollTime waits until the time after has passed, and returns its limit for polling.
func pollTime(u *History, maxTime, after time.Duration, measure bool) time.Duration {
	w := u.Wait(maxTime, measure)
	defer w.Done()
	limit := w.limit
	for time.Since(w.begin) < after {
		if !w.More() {
			time.Sleep(after - time.Since(w.begin))
			break
		}
	}
	return limit
}

// setMultiCPU pretends that the machine has several processors, or one.
func setMultiCPU(t *testing.T, multi bool) {
	before := multiCPU
	multiCPU = multi
	t.Cleanup(func() { multiCPU = before })
}

func TestOneProcessor(t *testing.T) {
	setMultiCPU(t, false)
	u := History{avg: time.Millisecond}
	if w := u.Wait(time.Second, true); w.More() {
		t.Error("polls on the only processor")
	}
}

// TestFakeClock polls in a bubble, whose clock does not move meanwhile.
func TestFakeClock(t *testing.T) {
	setMultiCPU(t, true)
	setSlice(t, time.Hour)
	synctest.Test(t, func(*testing.T) {
		var u History
		w := u.Wait(time.Second, true)
		defer w.Done()
		for w.More() {
		}
	})
}

// TestGOMAXPROCS waits after GOMAXPROCS has become 1.
func TestGOMAXPROCS(t *testing.T) {
	setMultiCPU(t, true)
	setSlice(t, time.Hour)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	u := History{avg: time.Millisecond}
	w := u.Wait(time.Second, true)
	defer w.Done()
	if w.limit > MinTime {
		t.Errorf("would poll for %v on the only processor", w.limit)
	}
}

// setSlice sets what other programs may take of the processor unnoticed.
func setSlice(t *testing.T, d time.Duration) {
	before := slice
	slice = d
	busyUntil.Store(0)
	t.Cleanup(func() { slice = before; busyUntil.Store(0) })
}

// TestBusy: after a wait has lost the processor no wait polls, for much longer than it was lost.
func TestBusy(t *testing.T) { synctest.Test(t, testBusy) }

func testBusy(t *testing.T) {
	setMultiCPU(t, true)
	for _, lostIn := range []string{"More", "Done"} { // the answer may be there when the wait goes on
		setSlice(t, time.Hour)
		h, other := History{avg: time.Second}, History{}
		w := h.Wait(time.Hour, true)
		if !w.More() {
			t.Fatal("does not poll")
		}
		slice = time.Millisecond
		time.Sleep(2 * slice)
		if lostIn == "More" && w.More() {
			t.Error("polls on after it has lost the processor")
		}
		w.Done()
		if left := time.Duration(busyUntil.Load()) - time.Since(start); left < 64*slice {
			t.Errorf("lost in %s: polls again in %v", lostIn, left)
		}
		next := other.Wait(time.Hour, true)
		if next.More() {
			t.Errorf("lost in %s: another wait polls at once", lostIn)
		}
		next.Done()
		busyUntil.Store(int64(time.Since(start) + 2*maxRest)) // which another clock has set
		if busy(time.Now()) {
			t.Error("waits of other clocks are taken for those of this one")
		}
		busyUntil.Store(int64(time.Since(start)))
		slice = time.Hour
		again := other.Wait(time.Hour, true)
		if !again.More() {
			t.Errorf("lost in %s: does not poll when the time is over", lostIn)
		}
		again.Done()
	}
}

// TestSleepIsNoLoss: a wait that sleeps, instead of polling, has lost nothing.
func TestSleepIsNoLoss(t *testing.T) {
	setMultiCPU(t, true)
	setSlice(t, time.Millisecond)
	var h History
	w := h.Wait(0, false)
	w.More()
	time.Sleep(2 * slice)
	w.Done()
	if busyUntil.Load() != 0 {
		t.Error("a sleep counts as a loss of the processor")
	}
}

// TestWait waits by a clock that no other program on the machine can make late.
func TestWait(t *testing.T) { synctest.Test(t, testWait) }

func testWait(t *testing.T) {
	setMultiCPU(t, true)
	setSlice(t, time.Hour)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const maxTime = 200 * time.Millisecond
	var u History
	if d := pollTime(&u, maxTime, 20*time.Millisecond, true); d != MinTime {
		t.Errorf("the first wait would poll for %v", d)
	}
	for range 3 {
		if d := pollTime(&u, maxTime, 20*time.Millisecond, true); d < 40*time.Millisecond || d > maxTime {
			t.Errorf("after waits of 20 ms it would poll for %v", d)
		}
		if d := pollTime(&u, maxTime, 20*time.Millisecond, false); d != MinTime {
			t.Errorf("where that is no measure it would poll for %v", d)
		}
	}
	for range 4 {
		pollTime(&u, maxTime, 2*maxTime, true)
	}
	if d := pollTime(&u, maxTime, 0, true); d != MinTime {
		t.Errorf("after long waits it would poll for %v", d)
	}
	for range 12 {
		pollTime(&u, maxTime, time.Millisecond, true)
	}
	var other History
	other.avg = time.Millisecond
	first := u.Wait(maxTime, true)
	second := other.Wait(maxTime, true)
	if first.limit <= MinTime || second.limit != MinTime {
		t.Errorf("two at once would poll for %v and %v", first.limit, second.limit)
	}
	first.Done()
	second.Done()
	if third := other.Wait(maxTime, true); third.limit <= MinTime {
		t.Errorf("the next would poll for %v", third.limit)
	} else {
		third.Done()
	}
	if w := u.Wait(0, true); w.More() {
		t.Error("polls with a maximum of 0")
	}
}

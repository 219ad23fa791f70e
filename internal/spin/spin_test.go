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
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	u := History{avg: time.Millisecond}
	w := u.Wait(time.Second, true)
	defer w.Done()
	if w.limit > MinTime {
		t.Errorf("would poll for %v on the only processor", w.limit)
	}
}

func TestWait(t *testing.T) {
	setMultiCPU(t, true)
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

package spin

import (
	"runtime"
	"testing"
	"time"
)

// look waits until the time after has passed, and returns how long it would poll.
func look(u *Usual, most, after time.Duration, measure bool) time.Duration {
	w := u.Wait(most, measure)
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

// on pretends that the machine has several processors, or one.
func on(t *testing.T, some bool) {
	before := several
	several = some
	t.Cleanup(func() { several = before })
}

func TestOneProcessor(t *testing.T) {
	on(t, false)
	u := Usual{took: time.Millisecond}
	if w := u.Wait(time.Second, true); w.More() {
		t.Error("looks, which keeps what it waits for from coming")
	}
}

// TestGOMAXPROCS waits after GOMAXPROCS has become 1.
func TestGOMAXPROCS(t *testing.T) {
	on(t, true)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	u := Usual{took: time.Millisecond}
	w := u.Wait(time.Second, true)
	defer w.Done()
	if w.limit > Least {
		t.Errorf("would look for %v on the only processor", w.limit)
	}
}

func TestWait(t *testing.T) {
	on(t, true)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const most = 200 * time.Millisecond
	var u Usual
	if d := look(&u, most, 20*time.Millisecond, true); d != Least {
		t.Errorf("the first wait would look for %v", d)
	}
	for range 3 {
		if d := look(&u, most, 20*time.Millisecond, true); d < 40*time.Millisecond || d > most {
			t.Errorf("after waits of 20 ms it would look for %v", d)
		}
		if d := look(&u, most, 20*time.Millisecond, false); d != Least {
			t.Errorf("where that is no measure it would look for %v", d)
		}
	}
	for range 4 {
		look(&u, most, 2*most, true)
	}
	if d := look(&u, most, 0, true); d != Least {
		t.Errorf("after long waits it would look for %v", d)
	}
	for range 12 {
		look(&u, most, time.Millisecond, true)
	}
	var other Usual
	other.took = time.Millisecond
	first := u.Wait(most, true)
	second := other.Wait(most, true)
	if first.limit <= Least || second.limit != Least {
		t.Errorf("two at once would look for %v and %v", first.limit, second.limit)
	}
	first.Done()
	second.Done()
	if third := other.Wait(most, true); third.limit <= Least {
		t.Errorf("the next would look for %v", third.limit)
	} else {
		third.Done()
	}
	if w := u.Wait(0, true); w.More() {
		t.Error("looks without being allowed to")
	}
}

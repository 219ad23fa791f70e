package provider

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/sys"
)

// TestGateWaits takes a lock that other goroutines hold most of the time: waiting for a Gate takes
// at most 10 times as long as for a sync.Mutex, for which at least 100 ms are assumed.
func TestGateWaits(t *testing.T) {
	const most = 10
	for _, procs := range []int{1, 2} {
		for _, hold := range []int{0, 500} {
			old := runtime.GOMAXPROCS(procs)
			mutex, gate := measureWaits(new(sync.Mutex), hold), measureWaits(new(Gate), hold)
			runtime.GOMAXPROCS(old)
			t.Logf("%d processors, held for %d steps: mutex %v, gate %v", procs, hold, mutex, gate)
			if gate > most*max(mutex, 100*time.Millisecond) {
				t.Errorf("%d processors, held for %d steps: the gate was waited for %v, a mutex %v", procs, hold, gate, mutex)
			}
		}
	}
}

// measureWaits returns how long it takes to lock l 20 times while 4 goroutines lock it
// all the time, for some steps of work each.
func measureWaits(l sync.Locker, steps int) time.Duration {
	var pollers sync.WaitGroup
	stop, work := false, 0
	for range 4 {
		pollers.Go(func() {
			for end := false; !end; {
				l.Lock()
				for range steps {
					work++
				}
				end = stop
				l.Unlock()
			}
		})
	}
	var all time.Duration
	for range 20 {
		time.Sleep(time.Millisecond)
		start := time.Now()
		l.Lock()
		all += time.Since(start)
		l.Unlock()
	}
	l.Lock()
	stop = true
	l.Unlock()
	pollers.Wait()
	return all
}

// TestGateInBubble takes a lock in a bubble of testing/synctest, whose clock stands still while a
// goroutine waits for a mutex: the goroutine that gets the lock next must not need that clock.
func TestGateInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Lock()
		var wg sync.WaitGroup
		taken := 0
		for range 3 {
			wg.Go(func() {
				g.Lock()
				taken++
				g.Unlock()
			})
		}
		for range 500 { // until one naps, and the others wait for it
			sys.Nap()
		}
		g.Unlock()
		wg.Wait()
		if taken != 3 {
			t.Errorf("taken %d times", taken)
		}
	})
}

// TestLoseSingleThreaded checks that a queue without a lock is left to its owner.
func TestLoseSingleThreaded(t *testing.T) {
	g := Gate{SingleThreaded: true}
	if lost := g.Lose(); lost || g.Closed || g.uses != 0 {
		t.Errorf("lost: %t, %+v", lost, &g)
	}
	g.Unlock()
}

// TestLoseInBubble loses a queue whose lock is held, by a goroutine that holds a mutex for which
// another waits: the clock of the bubble stands still, and Lose must not need it.
func TestLoseInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Lock()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				mu.Lock()
				g.Lose()
				g.Unlock()
				mu.Unlock()
			})
		}
		for range 100 { // until one is in Lose, and the other waits for it
			sys.Nap()
		}
		g.Unlock()
		wg.Wait()
	})
}

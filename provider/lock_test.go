package provider

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestLock has goroutines count under both kinds of lock, on one processor and
// on all: none is lost, and nobody waits for ever.
func TestLock(t *testing.T) {
	for _, procs := range []int{1, runtime.NumCPU()} {
		old := runtime.GOMAXPROCS(procs)
		defer runtime.GOMAXPROCS(old)
		const each = 20000
		var l lock
		var wg sync.WaitGroup
		n := 0
		for i := range 8 {
			wg.Go(func() {
				for k := range each {
					if i == 0 && k%1000 == 0 {
						l.LockLong()
						n++
						time.Sleep(100 * time.Microsecond)
						l.UnlockLong()
						continue
					}
					l.Lock()
					n++
					l.Unlock()
				}
			})
		}
		wg.Wait()
		if n != 8*each {
			t.Errorf("%d processors: counted %d, not %d", procs, n, 8*each)
		}
	}
}

// TestLockAgainstPoller takes a lock that another takes again and again.
func TestLockAgainstPoller(t *testing.T) {
	var l lock
	var wg sync.WaitGroup
	n, stop := 0, false
	wg.Go(func() {
		for {
			l.Lock()
			end := stop
			l.Unlock()
			if end {
				return
			}
		}
	})
	for range 100 {
		l.Lock()
		n++
		l.Unlock()
		l.LockLong()
		n++
		l.UnlockLong()
	}
	l.LockLong()
	stop = true
	l.UnlockLong()
	wg.Wait()
	if n != 200 {
		t.Errorf("%d times, not 200", n)
	}
}

func BenchmarkLock(b *testing.B) {
	b.Run("lock", func(b *testing.B) {
		var l lock
		for n := 0; b.Loop(); n++ {
			l.Lock()
			n++
			l.Unlock()
		}
	})
	b.Run("mutex", func(b *testing.B) {
		var l sync.Mutex
		for n := 0; b.Loop(); n++ {
			l.Lock()
			n++
			l.Unlock()
		}
	})
}

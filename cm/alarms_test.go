package cm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAlarms waits in several queues of a manager: each wait ends at its time, whatever the order in
// which they begin, and one whose event comes before ends with that.
func TestAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &manager{}
		m.thread.init()
		m.alarms.init()
		defer m.alarms.stop()
		begin := time.Now()
		ended := make(chan time.Duration)
		wait := func(after time.Duration) *queue {
			q := newQueue(m)
			go func() {
				if _, err := q.next(t.Context(), begin.Add(after)); err != errLate {
					t.Errorf("the wait of %v: %v", after, err)
				}
				ended <- time.Since(begin)
			}()
			synctest.Wait()
			return q
		}
		times := []time.Duration{30 * time.Second, 10 * time.Millisecond, time.Second, time.Minute}
		for _, after := range times {
			wait(after)
		}
		early := newQueue(m)
		got := make(chan error)
		go func() {
			_, err := early.next(t.Context(), begin.Add(time.Hour))
			got <- err
		}()
		synctest.Wait()
		early.push(Event{ID: &ID{}, Type: Established})
		if err := <-got; err != nil || time.Since(begin) != 0 {
			t.Errorf("an event: %v after %v", err, time.Since(begin))
		}
		for _, i := range []int{1, 2, 0, 3} {
			if at := <-ended; at != times[i] {
				t.Errorf("a wait ended after %v, not %v", at, times[i])
			}
		}
		if n := len(m.alarms.times); n != 0 {
			t.Errorf("%d waits are left", n)
		}
		if _, err := newQueue(m).next(t.Context(), begin); err != errLate {
			t.Errorf("after the time: %v", err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := newQueue(m).next(cancelled, time.Now().Add(time.Second)); err != context.Canceled {
			t.Errorf("cancelled: %v", err)
		}
	})
}

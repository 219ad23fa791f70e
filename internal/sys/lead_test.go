package sys

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLead has events come at any time to a file that somebody leads now and then,
// and somebody else waits for all the time: who leads takes all that come
// meanwhile, as it would not hear of what the other took, and none is lost.
func TestLead(t *testing.T) {
	e, w := pipe(t)
	var led atomic.Bool
	var taken atomic.Int64
	take := func(fd int) error {
		var b [1]byte
		_, err := unix.Read(fd, b[:])
		if err == nil {
			taken.Add(1)
		}
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			err := e.Do(context.Background(), func(fd int) error {
				if led.Load() {
					t.Error("an event was taken from who leads")
				}
				return take(fd)
			})
			if err != nil {
				return
			}
		}
	}()
	const events = 3000
	go func() {
		for i := range events {
			if i%7 == 0 {
				time.Sleep(50 * time.Microsecond)
			}
			unix.Write(w, []byte{1})
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); taken.Load() < events; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events were taken", taken.Load(), events)
		}
		until := time.Now().Add(200 * time.Microsecond)
		e.Lead(func() bool {
			more := time.Now().Before(until)
			led.Store(more)
			return !more
		}, take)
		led.Store(false)
	}
	e.Close()
	<-ended
}

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
		}, nil, take)
		led.Store(false)
	}
	e.Close()
	<-ended
}

// TestRest has who waits all the time sleep on after a Lead that says so, and wake
// for what came meanwhile when told to.
func TestRest(t *testing.T) {
	e, w := pipe(t)
	taken := make(chan byte, 10)
	take := func(fd int) error {
		var b [1]byte
		_, err := unix.Read(fd, b[:])
		if err == nil {
			taken <- b[0]
		}
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e.Do(context.Background(), take) == nil {
		}
	}()
	defer func() { e.Close(); <-ended }()
	expect := func(want byte) {
		t.Helper()
		select {
		case b := <-taken:
			if b != want {
				t.Fatalf("%d in place of %d", b, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d was not taken", want)
		}
	}
	write := func(b byte) { unix.Write(w, []byte{b}) }
	write(1)
	expect(1)
	for _, rest := range []bool{true, false} {
		write(2)
		e.Lead(func() bool { return len(taken) > 0 }, func() bool { return rest }, take)
		expect(2)
		write(3)
		if rest {
			time.Sleep(50 * time.Millisecond)
			if len(taken) > 0 {
				t.Error("taken in spite of the rest")
			}
			e.Resume()
		}
		expect(3)
	}
}

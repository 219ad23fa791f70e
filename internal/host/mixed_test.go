//go:build linux && !nordma

package host

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMixedSet has virtual files in a set with a descriptor, and moves a goroutine that waits
// without one.
func TestMixedSet(t *testing.T) {
	s := NewSet()
	defer s.Close()
	early, earlyFD := installFile(t)
	late, lateFD := installFile(t)
	if err := s.Add(earlyFD, 1); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	time.AfterFunc(10*time.Millisecond, func() { // Wait has begun without a descriptor
		if err := s.Add(int(r.Fd()), 3); err != nil {
			t.Error(err)
		}
		w.Write([]byte("x"))
	})
	ready, _, err := s.Wait()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "pipe", ready, readable(3))
	s.Remove(int(r.Fd()))

	early.Set(Readable)
	if err := s.Add(lateFD, 2); err != nil {
		t.Fatal(err)
	}
	var buf [8]Event
	expect(t, "early file", s.Poll(buf[:]), readable(1))
	early.Set(Idle)
	late.Set(Failed)
	expect(t, "late file", s.Poll(buf[:]), Event{ID: 2, Failed: true})
	polled := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
	if n, err := unix.Poll(polled, 0); n != 1 || err != nil {
		t.Errorf("the set's file: %d, %v", n, err)
	}
	late.Set(Idle)
	if n, _ := unix.Poll(polled, 0); n != 0 {
		t.Error("the set's file is readable while all files are idle")
	}
}

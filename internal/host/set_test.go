//go:build linux && !nordma

package host

import (
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSet waits for a file, for Wake, and for Close, and checks what the set returns.
func TestSet(t *testing.T) {
	s := NewSet()
	defer s.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := s.Add(int(r.Fd()), 7); err != nil {
		t.Fatal(err)
	}
	var buf [8]Event
	expect := func(when string, got []Event, ids ...int32) {
		t.Helper()
		if len(got) != len(ids) {
			t.Fatalf("%s: %d files are readable, want %d", when, len(got), len(ids))
		}
		for i, id := range ids {
			if got[i].ID != id {
				t.Errorf("%s: file %d is readable, want %d", when, got[i].ID, id)
			}
		}
	}
	later := func(do func()) { time.AfterFunc(10*time.Millisecond, do) }
	expect("at first", s.Poll(buf[:]))

	later(func() { w.Write([]byte("x")) })
	ready, slept, err := s.Wait()
	expect("written", ready, 7)
	if !slept || err != nil {
		t.Errorf("waited for a file: slept %t, %v", slept, err)
	}
	if _, slept, _ = s.Wait(); slept {
		t.Error("slept while a file was readable")
	}
	s.Remove(int(r.Fd()))
	expect("removed", s.Poll(buf[:]))

	later(s.Wake)
	ready, _, _ = s.Wait()
	expect("woken", ready, WakeID)
	s.Wake()
	expect("still", s.Poll(buf[:]), WakeID)
	s.Clear()
	s.Clear()
	expect("cleared", s.Poll(buf[:]))

	later(s.Close)
	if _, _, err := s.Wait(); err == nil {
		t.Error("Wait returns without an error when the set is closed")
	}
	s.Wake()
	s.Close()
	expect("closed", s.Poll(buf[:]))
	if s.FD() != -1 || s.Add(0, 1) == nil {
		t.Error("a closed set takes files")
	}
}

// TestWakeClear calls Wake and Clear at the same time from several goroutines: a Wake after
// the last Clear is never lost.
func TestWakeClear(t *testing.T) {
	s := NewSet()
	defer s.Close()
	var buf [8]Event
	for range 200 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(s.Wake)
			all.Go(s.Clear)
		}
		all.Wait()
		s.Wake()
		if len(s.Poll(buf[:])) != 1 {
			t.Fatal("Wake was lost")
		}
	}
}

// TestCloseDuringWait closes sets whose waiter is just looking for events.
func TestCloseDuringWait(t *testing.T) {
	for range 200 {
		s := NewSet()
		s.FD() // so that it is an epoll file
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				if _, _, err := s.Wait(); err != nil {
					return
				}
				s.Clear()
			}
		}()
		go func() {
			for {
				select {
				case <-ended:
					return
				default:
					s.Wake()
				}
			}
		}()
		time.Sleep(50 * time.Microsecond)
		s.Close()
		<-ended
	}
}

// TestEdgeOfEachEvent waits for edges of a set with a virtual file: each event makes one, also if
// none has been read.
func TestEdgeOfEachEvent(t *testing.T) {
	s := NewSet()
	defer s.Close()
	f, fd := installFile(t)
	if err := s.Add(fd, 7); err != nil {
		t.Fatal(err)
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(set)
	if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, s.FD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		f.Event()
		if n, err := unix.EpollWait(set, make([]unix.EpollEvent, 1), 0); n != 1 || err != nil {
			t.Errorf("event %d: %d edges, %v", i, n, err)
		}
	}
	f.Set(Readable) // as one of several events is read
	if n, err := unix.EpollWait(set, make([]unix.EpollEvent, 1), 0); n != 0 || err != nil {
		t.Errorf("%d edges without an event, %v", n, err)
	}
}

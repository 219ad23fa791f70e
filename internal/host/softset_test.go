package host

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// file is a virtual file with a state.
type file struct {
	Unsupported
	Readiness
}

func (*file) Close() {}

func (f *file) Watch(changed func(State)) func() { return f.Readiness.Watch(changed) }

func installFile(t *testing.T) (*file, int) {
	t.Helper()
	f := &file{}
	fd, errno := Install(f, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { Close(fd) })
	return f, fd
}

// expect compares events with IDs and, for those below zero, Wake.
func expect(t *testing.T, when string, got []Event, want ...Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", when, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
}

func readable(id int32) Event { return Event{ID: id} }

// TestVirtualSet waits for a virtual file, for Wake and for Close, by a fake clock.
func TestVirtualSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet()
		f, fd := installFile(t)
		if err := s.Add(fd, 7); err != nil {
			t.Fatal(err)
		}
		var buf [8]Event
		expect(t, "at first", s.Poll(buf[:]))
		wait := func(when string, do func(), want ...Event) {
			t.Helper()
			begin := time.Now()
			time.AfterFunc(time.Hour, do)
			ready, slept, err := s.Wait()
			expect(t, when, ready, want...)
			if !slept || err != nil || time.Since(begin) != time.Hour {
				t.Errorf("%s: slept %t for %v, %v", when, slept, time.Since(begin), err)
			}
		}
		wait("readable", func() { f.Set(Readable) }, readable(7))
		if _, slept, _ := s.Wait(); slept {
			t.Error("slept while a file was readable")
		}
		f.Set(Idle)
		expect(t, "idle", s.Poll(buf[:]))
		wait("woken", s.Wake, readable(WakeID))
		expect(t, "still", s.Poll(buf[:]), readable(WakeID))
		expect(t, "no room", s.Poll(nil))
		s.Clear()
		expect(t, "cleared", s.Poll(buf[:]))
		wait("failed", func() { f.Set(Failed) }, Event{ID: 7, Failed: true})
		s.Remove(fd)
		expect(t, "removed", s.Poll(buf[:]))
		if err := s.Add(fd, 8); err != nil {
			t.Fatal(err)
		}
		s.Remove(fd)
		time.AfterFunc(time.Hour, s.Close)
		if _, _, err := s.Wait(); err == nil {
			t.Error("Wait returns without an error when the set is closed")
		}
		s.Close()
		s.Wake()
		expect(t, "closed", s.Poll(buf[:]))
		if s.FD() != -1 || s.Add(fd, 1) == nil {
			t.Error("a closed set takes files")
		}
	})
}

// watchedFile calls a function while it is added to a set.
type watchedFile struct {
	file
	added func()
}

func (f *watchedFile) Watch(changed func(State)) func() {
	f.added()
	return f.file.Watch(changed)
}

// TestCloseDuringAdd closes a set, or removes a file, while the file is being added.
func TestCloseDuringAdd(t *testing.T) {
	f := &watchedFile{}
	fd, errno := Install(f, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	defer Close(fd)
	s := NewSet()
	f.added = func() { s.Remove(fd) }
	if err := s.Add(fd, 1); err != nil {
		t.Error(err)
	}
	s.Remove(fd)
	f.added = s.Close
	if err := s.Add(fd, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v, want %v", err, os.ErrClosed)
	}
	if n := len(f.watchers); n != 0 {
		t.Errorf("the set watches %d times", n)
	}
}

package epoll

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// file is a virtual file with a state.
type file struct {
	virtual.Unsupported
	virtual.Readiness
}

func (*file) Close() {}

func (f *file) Watch(changed func(virtual.State)) func() { return f.Readiness.Watch(changed) }

func install(t *testing.T) (*file, int) {
	t.Helper()
	f := &file{}
	fd, errno := virtual.Install(f, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { virtual.Close(fd) })
	return f, fd
}

// expect compares events with IDs and, for those below zero, Wake.
func expect(t *testing.T, when string, got []unix.EpollEvent, want ...unix.EpollEvent) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", when, got, want)
	}
	for i := range want {
		if got[i].Fd != want[i].Fd || got[i].Events != want[i].Events {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
}

func readable(id int32) unix.EpollEvent { return unix.EpollEvent{Events: unix.EPOLLIN, Fd: id} }

// TestVirtualSet waits for a virtual file, for Wake and for Close, by a fake clock.
func TestVirtualSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		f, fd := install(t)
		if err := s.Add(fd, 7); err != nil {
			t.Fatal(err)
		}
		var buf [8]unix.EpollEvent
		expect(t, "at first", s.Poll(buf[:]))
		wait := func(when string, do func(), want ...unix.EpollEvent) {
			t.Helper()
			begin := time.Now()
			time.AfterFunc(time.Hour, do)
			ready, slept, err := s.Wait()
			expect(t, when, ready, want...)
			if !slept || err != nil || time.Since(begin) != time.Hour {
				t.Errorf("%s: slept %t for %v, %v", when, slept, time.Since(begin), err)
			}
		}
		wait("readable", func() { f.Set(virtual.Readable) }, readable(7))
		if _, slept, _ := s.Wait(); slept {
			t.Error("slept while a file was readable")
		}
		f.Set(virtual.Idle)
		expect(t, "idle", s.Poll(buf[:]))
		wait("woken", s.Wake, readable(WakeID))
		expect(t, "still", s.Poll(buf[:]), readable(WakeID))
		expect(t, "no room", s.Poll(nil))
		s.Clear()
		expect(t, "cleared", s.Poll(buf[:]))
		wait("failed", func() { f.Set(virtual.Failed) }, unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLERR, Fd: 7})
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

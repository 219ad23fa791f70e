//go:build linux

package cm_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// waits are the ways in which an event loop waits for a file.
var waits = map[string]struct {
	watch func(t *testing.T, fd int) (wait func(time.Duration) bool)
	drain bool // TryNext is called until there is no event
}{
	"poll":           {pollFD, false},
	"epoll":          {func(t *testing.T, fd int) func(time.Duration) bool { return epollFD(t, fd, 0) }, false},
	"edge-triggered": {func(t *testing.T, fd int) func(time.Duration) bool { return epollFD(t, fd, unix.EPOLLET) }, true},
	"nested": {func(t *testing.T, fd int) func(time.Duration) bool {
		inner := epollSet(t)
		addTo(t, inner, fd, 0)
		return epollFD(t, inner, unix.EPOLLET)
	}, true},
}

// uninterrupted calls wait again after EINTR, which signals of Go's scheduler cause.
func uninterrupted(t *testing.T, timeout time.Duration, wait func(milliseconds int) (int, error)) bool {
	t.Helper()
	for end := time.Now().Add(timeout); ; {
		n, err := wait(int(max(time.Until(end).Milliseconds(), 0)))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

func pollFD(t *testing.T, fd int) func(time.Duration) bool {
	return func(timeout time.Duration) bool {
		return uninterrupted(t, timeout, func(ms int) (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms)
		})
	}
}

func epollSet(t *testing.T) int {
	set := labtest.Must(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	t.Cleanup(func() { unix.Close(set) })
	return set
}

func addTo(t *testing.T, set, fd int, flags uint32) {
	if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | flags}); err != nil {
		t.Fatal(err)
	}
}

func epollFD(t *testing.T, fd int, flags uint32) func(time.Duration) bool {
	set := epollSet(t)
	addTo(t, set, fd, flags)
	return func(timeout time.Duration) bool {
		return uninterrupted(t, timeout, func(ms int) (int, error) {
			return unix.EpollWait(set, make([]unix.EpollEvent, 1), ms)
		})
	}
}

// TestChannelFD dials a channel's listener many times, from the channel and from goroutines, and
// reads the channel's events when its file becomes readable: none is missed.
func TestChannelFD(t *testing.T) {
	for name, w := range waits {
		t.Run(name, func(t *testing.T) {
			labtest.Each(t, func(t *testing.T, device string) {
				ch, _, addr := newChannel(t, cm.DefaultTransport(), device)
				wait := w.watch(t, ch.FD())
				if wait(0) {
					t.Error("readable before there is an event")
				}
				if e, ok, err := ch.TryNext(); ok || err != nil {
					t.Errorf("before there is an event: %v, %v", e, err)
				}
				testChannelFD(t, ch, addr, wait, w.drain)
			})
		})
	}
}

func testChannelFD(t *testing.T, ch *cm.Channel, addr netip.AddrPort, wait func(time.Duration) bool, drain bool) {
	const dialers, each, own = 8, 10, 20
	ctx := within(t, 100*time.Second)
	var dialing sync.WaitGroup
	for range dialers {
		dialing.Go(func() {
			for range each {
				e, err := cm.Dial(ctx, addr.String())
				if err != nil {
					t.Error(err)
					return
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range own {
		resolving(t, ch, addr)
	}
	ended := 0
	for ended < dialers*each+2*own {
		if !wait(20 * time.Second) {
			e, ok, err := ch.TryNext()
			t.Fatalf("%d have ended; not readable, while there is %v event %v, %v", ended, ok, e.Type, err)
		}
		for more := true; more; more = more && drain {
			var ev cm.Event
			var err error
			if ev, more, err = ch.TryNext(); err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
			switch ev.Type {
			case cm.AddrResolved:
				err = ev.ID.ResolveRoute(time.Second)
			case cm.RouteResolved:
				_, err = ch.Connect(ev, cm.Options{})
			case cm.ConnectRequest:
				_, err = ch.Accept(ev, cm.Options{})
			case cm.Established:
				if ev.Endpoint.RemoteAddr().AddrPort == addr { // dialed here
					ev.Endpoint.Disconnect()
				}
			case cm.Disconnected:
				ended++
				err = ev.Endpoint.Close()
			default:
				err = ev.Err()
			}
			if err != nil {
				t.Fatalf("%v: %v", ev.Type, err)
			}
		}
	}
	dialing.Wait()
}

// TestChannelFDQueue checks that the file is readable for events that have left the kernel,
// but only for those that TryNext can return.
func TestChannelFDQueue(t *testing.T) {
	labtest.Require(t)
	ch, _, addr := newChannel(t, cm.DefaultTransport(), labtest.RoCE)
	for range 2 {
		id := resolving(t, ch, addr)
		wait := pollFD(t, ch.FD())
		for range 2 {
			if !wait(5 * time.Second) {
				t.Fatal("not readable for an event")
			}
		}
		if e, ok, err := ch.TryNext(); err != nil || !ok || e.ID != id || e.Type != cm.AddrResolved {
			t.Errorf("%+v, %v, %v", e, ok, err)
		}
		if wait(0) {
			t.Error("readable after the event was taken")
		}
		labtest.Check(t, id.Close())
	}
	closed := resolving(t, ch, addr)
	if !pollFD(t, ch.FD())(5 * time.Second) {
		t.Error("not readable for an event")
	}
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	if e, ok, err := ch.TryNext(); ok || err != nil {
		t.Errorf("event %v of an ID that is closed, %v", e.Type, err)
	}

	ended := labtest.Must(cm.DefaultTransport().NewChannel())(t)
	if err := errors.Join(ended.Close(), ended.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := ended.TryNext(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("TryNext of a channel that is closed: %v", err)
	}
	if fd := ended.FD(); fd != -1 {
		t.Errorf("the file of a channel that is closed is %d", fd)
	}
}

// TestChannelTryNextBeside calls TryNext while another goroutine waits in Next: one of the
// two gets each event.
func TestChannelTryNextBeside(t *testing.T) {
	labtest.Require(t)
	const ids = 200
	ch, _, addr := newChannel(t, cm.DefaultTransport(), labtest.RoCE)
	ctx, cancel := context.WithCancel(within(t, 60*time.Second))
	var mu sync.Mutex
	seen := map[*cm.ID]int{}
	note := func(e cm.Event) {
		mu.Lock()
		defer mu.Unlock()
		if seen[e.ID]++; len(seen) == ids {
			cancel()
		}
	}
	var taking sync.WaitGroup
	taking.Go(func() {
		for {
			e, err := ch.Next(ctx)
			if err != nil {
				return
			}
			note(e)
		}
	})
	taking.Go(func() {
		wait := pollFD(t, ch.FD())
		for ctx.Err() == nil {
			wait(time.Millisecond)
			if e, ok, err := ch.TryNext(); err != nil {
				t.Error(err)
				return
			} else if ok {
				note(e)
			}
		}
	})
	for range ids {
		labtest.Close(t, resolving(t, ch, addr))
	}
	taking.Wait()
	for _, n := range seen {
		if n != 1 {
			t.Errorf("an event was taken %d times", n)
		}
	}
	if len(seen) != ids {
		t.Errorf("%d events, not %d", len(seen), ids)
	}
}

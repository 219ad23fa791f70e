//go:build linux

package rmsg_test

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestIdle tests that loops with idle connections take no processor time.
func TestIdle(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		c, s := pair(t, device, rmsg.Options{}, rmsg.Options{})
		for range 10 {
			if err := c.Send(within(t), []byte("x")); err != nil {
				t.Fatal(err)
			}
			labtest.Must(s.Recv(within(t)))(t).Free()
		}
		used := func() time.Duration {
			var u unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
			return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
		}
		// Background work of the start may still be running, so the second with
		// the least processor time counts.
		const wall = time.Second
		least := wall
		for i := 0; i < 4 && least > wall/50; i++ {
			before := used()
			time.Sleep(wall)
			least = min(least, used()-before)
		}
		t.Logf("%v of processor time in %v", least, wall)
		if least > wall/50 {
			t.Errorf("%v of processor time in %v of doing nothing", least, wall)
		}
	})
}

// TestIdleDevice tests that loops sleep when they have closed a device that nothing uses any more.
func TestIdleDevice(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		server, client := run(t, rmsg.Options{}), run(t, rmsg.Options{})
		c, s := connect(t, device, client, server)
		labtest.Check(t, c.Shutdown(within(t)))
		<-s.Done()
		for _, l := range []*rmsg.Loop{server, client} {
			labtest.Until(t, "the device to be closed", func() bool { return l.Stats().Devices == 0 })
			before := l.Stats().Dispatches
			time.Sleep(100 * time.Millisecond)
			if n := l.Stats().Dispatches - before; n > 10 {
				t.Errorf("%d dispatches with nothing to do", n)
			}
		}
	})
}

// TestAllocs tests that messages up to Eager do not allocate, from Post to the callbacks.
func TestAllocs(t *testing.T) {
	if labtest.Race {
		t.Skip("the race detector allocates")
	}
	labtest.Each(t, func(t *testing.T, device string) {
		var client, server *rmsg.Loop
		up, got, sent := false, 0, 0
		server = labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
			Request: func(r *rmsg.Request) { r.Accept(nil) },
			Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
				got++
				b.Free()
			},
		}}))(t)
		labtest.Close(t, server)
		client = labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
			Established: func(*rmsg.Conn) { up = true },
			Sent:        func(*rmsg.Conn, *rmsg.Buffer) { sent++ },
		}}))(t)
		labtest.Close(t, client)
		ln := listen(t, server, device)
		c := labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
		poll(t, func() bool { return up }, client, server)
		b := labtest.Must(c.Alloc(1000))(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		exchange := func() {
			goal := got + 1
			if err := c.Post(b); err != nil {
				t.Fatal(err)
			}
			for got < goal || sent < goal {
				for _, l := range [...]*rmsg.Loop{client, server} {
					if _, err := l.Dispatch(ended); err != nil && err != context.Canceled {
						t.Fatal(err)
					}
				}
			}
		}
		// More runs than credits, so that acks are included.
		if n := testing.AllocsPerRun(200, exchange); n != 0 {
			t.Errorf("%v allocations for a message", n)
		}
	})
}

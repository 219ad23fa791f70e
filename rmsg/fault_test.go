//go:build linux

package rmsg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestKilledPeer kills a process while it sends and receives large messages.
func TestKilledPeer(t *testing.T) {
	labtest.RequireKernel(t)
	if addr := os.Getenv("MSG_DIAL"); addr != "" {
		l := run(t, rmsg.Options{})
		s := labtest.Must((&rmsg.Dialer{Loop: l}).Dial(t.Context(), addr))(t)
		for { // until killed; it receives nothing
			if err := s.Send(t.Context(), make([]byte, 4<<20)); err != nil {
				t.Fatal(err)
			}
		}
	}
	labtest.Each(t, func(t *testing.T, device string) {
		ln := listen(t, run(t, rmsg.Options{}), device)
		child := exec.Command(os.Args[0], "-test.run", "^TestKilledPeer$")
		child.Env = append(os.Environ(), "MSG_DIAL="+ln.Addr().String())
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer child.Wait()
		defer child.Process.Signal(unix.SIGKILL)
		s := labtest.Must(ln.Accept(within(t)))(t)
		b := labtest.Must(s.Recv(within(t)))(t)
		large := labtest.Must(s.Alloc(8 << 20))(t)
		// Its kernel goes on; a process that runs might read all of the message before it is
		// killed.
		labtest.Check(t, child.Process.Signal(unix.SIGSTOP))
		labtest.Must(unix.Wait4(child.Process.Pid, nil, unix.WUNTRACED, nil))(t)
		if err := s.Post(large); err != nil {
			t.Fatal(err)
		}
		b.Free() // the next is being read
		if err := child.Process.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			var b *rmsg.Buffer
			if b, err = s.Recv(within(t)); err == nil {
				b.Free()
			}
		}
		if !errors.Is(err, verbs.ErrDisconnected) && !errors.Is(err, rmsg.ErrUnreadable) {
			t.Errorf("the peer died: %v", err)
		}
		t.Log(err)
		if large.Status() != rmsg.Failed || large.Err() == nil {
			t.Errorf("the message to it: %v, %v", large.Status(), large.Err())
		}
		if err := s.Send(within(t), nil); err == nil {
			t.Error("a message to the dead")
		}
		if err := large.Free(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseInCallbacks closes a connection in each of its callbacks.
func TestCloseInCallbacks(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for _, in := range []string{"established", "message", "sent", "writable", "disconnected"} {
			t.Run(in, func(t *testing.T) {
				ended := make(chan error, 1)
				closes := func(where string, s *rmsg.Conn) {
					if where == in {
						s.Close()
						s.Close()
					}
				}
				client := run(t, rmsg.Options{SendQueue: 1, Callbacks: rmsg.Callbacks{
					Established: func(s *rmsg.Conn) {
						for i := 0; ; i++ {
							b, err := s.Alloc(i * 1000)
							if err != nil {
								t.Error(err)
								break
							}
							if s.Post(b) != nil {
								b.Free()
								break
							}
						}
						closes("established", s)
					},
					Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
						closes("message", s)
						b.Free()
					},
					Sent: func(s *rmsg.Conn, b *rmsg.Buffer) {
						closes("sent", s)
						b.Free()
					},
					Writable: func(s *rmsg.Conn) { closes("writable", s) },
					Disconnected: func(s *rmsg.Conn, why error) {
						closes("disconnected", s)
						ended <- why
					},
				}})
				ln := listen(t, run(t, rmsg.Options{}), device)
				labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
				s := labtest.Must(ln.Accept(within(t)))(t)
				if in == "message" || in == "disconnected" {
					s.Send(within(t), []byte("x"))
				}
				if in == "disconnected" {
					s.Disconnect()
				}
				select {
				case why := <-ended:
					if want := map[bool]error{true: io.EOF, false: verbs.ErrClosed}[in == "disconnected"]; !errors.Is(why, want) {
						t.Errorf("ended with %v, want %v", why, want)
					}
				case <-within(t).Done():
					t.Error("it has not ended")
				}
				<-s.Done()
			})
		}
	})
}

// TestCloseAnyTime closes either side at random times during traffic in both directions:
// messages arrive in order, all calls end, and nothing leaks.
func TestCloseAnyTime(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	labtest.Each(t, func(t *testing.T, device string) {
		round := func(server, client *rmsg.Loop, ln *rmsg.Listener, i int) {
			c := labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
			socks := []*rmsg.Conn{c}
			if i%4 != 0 { // otherwise it is closed while it connects
				s := labtest.Must(ln.Accept(within(t)))(t)
				socks = append(socks, s)
			}
			var all sync.WaitGroup
			for _, s := range socks {
				all.Go(func() {
					for k := 0; ; k++ {
						if s.Send(within(t), pattern(k*k*997%200_000, k)) != nil {
							return
						}
					}
				})
				all.Go(func() {
					for k := 0; ; k++ {
						b, err := s.Recv(within(t))
						if err != nil {
							if errors.Is(err, context.DeadlineExceeded) {
								t.Error("nobody told of the end")
							}
							return
						}
						if !bytes.Equal(b.Bytes(), pattern(k*k*997%200_000, k)) {
							t.Errorf("message %d is another, of %d bytes", k, len(b.Bytes()))
						}
						b.Free()
					}
				})
			}
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
			x := socks[rand.IntN(len(socks))]
			if i%3 == 0 {
				x.Disconnect()
			} else {
				x.Close()
			}
			if i%4 == 0 {
				// Accept the connection, if its request still arrives.
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				if s, err := ln.Accept(ctx); err == nil {
					s.Close()
				}
				cancel()
			}
			all.Wait()
		}
		before := labtest.SettledInventory(t)
		server := labtest.Must(rmsg.NewLoop(rmsg.Options{Eager: 4096, Credits: 8}))(t)
		client := labtest.Must(rmsg.NewLoop(rmsg.Options{Eager: 4096, Credits: 8}))(t)
		var running sync.WaitGroup
		for _, l := range []*rmsg.Loop{server, client} {
			running.Go(func() { l.Run(context.Background()) })
		}
		ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		for i := range rounds {
			round(server, client, ln, i)
		}
		for _, l := range []*rmsg.Loop{server, client} {
			l.Close()
		}
		running.Wait()
		for _, l := range []*rmsg.Loop{server, client} {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		labtest.CheckLeaks(t, before)
	})
}

// TestLoopCloseAnyTime closes loops while connections connect and send.
func TestLoopCloseAnyTime(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		for range rounds {
			server := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
			client := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
			ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
			var all sync.WaitGroup
			for _, l := range []*rmsg.Loop{server, client} {
				all.Go(func() {
					if err := l.Run(context.Background()); !errors.Is(err, verbs.ErrClosed) {
						t.Error(err)
					}
				})
			}
			work := func(s *rmsg.Conn) {
				all.Go(func() {
					for s.Send(t.Context(), make([]byte, rand.IntN(100_000))) == nil {
					}
				})
				all.Go(func() {
					for b, err := s.Recv(t.Context()); err == nil; b, err = s.Recv(t.Context()) {
						b.Free()
					}
				})
			}
			all.Go(func() {
				for {
					s, err := ln.Accept(t.Context())
					if err != nil {
						return
					}
					work(s)
				}
			})
			all.Go(func() {
				for range 5 {
					s, err := (&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String())
					if err != nil {
						return
					}
					work(s)
				}
			})
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
			for _, l := range []*rmsg.Loop{server, client} {
				all.Go(func() { l.Close() })
			}
			all.Wait()
		}
		labtest.CheckLeaks(t, before)
	})
}

// TestPeersOfOneLoop connects two connections of one loop.
func TestPeersOfOneLoop(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := run(t, rmsg.Options{})
		ln := listen(t, l, device)
		c := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		if err := c.Send(within(t), []byte("to myself")); err != nil {
			t.Fatal(err)
		}
		b := labtest.Must(s.Recv(within(t)))(t)
		if string(b.Bytes()) != "to myself" {
			t.Errorf("%q", b.Bytes())
		}
		if err := s.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
		if err := c.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
		b.Free()
		if err := l.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}

//go:build linux

package rmsg_test

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

var errPanic = errors.New("panic in a callback")

// recovers calls f and returns its error, or errPanic if it panics with that.
func recovers(t testing.TB, f func() error) (err error) {
	defer func() {
		if v := recover(); v == errPanic {
			err = errPanic
		} else if v != nil {
			panic(v)
		}
	}()
	return f()
}

// TestPanicDisconnected ends several sockets before the loop is dispatched. Each
// Disconnected callback panics.
func TestPanicDisconnected(t *testing.T) {
	heard := 0
	l := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{Disconnected: func(*rmsg.Socket, error) {
		heard++
		panic(errPanic)
	}}}))(t)
	labtest.Close(t, l)
	socks := make([]*rmsg.Socket, 8)
	for i := range socks {
		socks[i] = labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
	}
	time.Sleep(50 * time.Millisecond) // so that most end in the same Dispatch
	for deadline := time.Now().Add(patience); heard < len(socks); {
		if err := recovers(t, func() error { return errOf(l.Dispatch()) }); err != nil && err != errPanic {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d sockets have ended", heard, len(socks))
		}
		time.Sleep(time.Millisecond)
	}
	for _, s := range socks {
		<-s.Done()
	}
}

// TestPanicInCallbacks makes every callback panic after its work. All messages arrive,
// all buffers are returned, and both loops leave nothing behind.
func TestPanicInCallbacks(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		t.Run("all", func(t *testing.T) { panicInCallbacks(t, device) })
		labtest.CheckLeaks(t, before)
	})
}

func panicInCallbacks(t *testing.T, device string) {
	const n = 100
	made, sent, received := 0, 0, 0
	ended := make(chan struct{}, 2)
	post := func(s *rmsg.Socket) { // until there is no room
		for made < n {
			b, err := s.Alloc(4 + made*made*10) // up to 98 KiB
			if err != nil {
				t.Error(err)
				return
			}
			binary.BigEndian.PutUint32(b.Bytes(), uint32(made))
			if err := s.Post(b); err != nil {
				b.Free()
				if !errors.Is(err, rmsg.ErrWouldBlock) {
					t.Error(err)
				}
				return
			}
			made++
		}
	}
	run := func(cb rmsg.Callbacks) *rmsg.Loop {
		cb.Disconnected = func(*rmsg.Socket, error) {
			ended <- struct{}{}
			panic(errPanic)
		}
		l := labtest.Must(rmsg.NewLoop(rmsg.Options{SendQueue: 5, Credits: 5, Callbacks: cb}))(t)
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				if err := recovers(t, func() error { return l.Run(context.Background()) }); err != errPanic {
					if !errors.Is(err, verbs.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		}()
		t.Cleanup(func() {
			l.Close()
			<-over
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		return l
	}
	server := run(rmsg.Callbacks{
		Request: func(r *rmsg.Request) {
			labtest.Must(r.Accept(rmsg.ConnOptions{}))(t)
			panic(errPanic)
		},
		Established: func(*rmsg.Socket) { panic(errPanic) },
		Message: func(s *rmsg.Socket, b *rmsg.Buffer) {
			if got := binary.BigEndian.Uint32(b.Bytes()); int(got) != received {
				t.Errorf("message %d comes as number %d", got, received)
			}
			received++
			b.Free()
			panic(errPanic)
		},
	})
	client := run(rmsg.Callbacks{
		Established: func(s *rmsg.Socket) {
			post(s)
			panic(errPanic)
		},
		Sent: func(s *rmsg.Socket, b *rmsg.Buffer) {
			if b.Status() != rmsg.Sent {
				t.Errorf("buffer is %v", b.Status())
			}
			b.Free()
			if sent++; sent == n {
				s.Disconnect()
			}
			panic(errPanic)
		},
		Writable: func(s *rmsg.Socket) {
			post(s)
			panic(errPanic)
		},
	})
	ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
	labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
	for range cap(ended) {
		select {
		case <-ended:
		case <-within(t).Done():
			t.Fatal("a socket has not ended")
		}
	}
	if sent != n || received != n {
		t.Errorf("of %d messages %d were sent and %d received", n, sent, received)
	}
}

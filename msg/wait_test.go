package msg_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/msg"
)

// waits are the methods that take a context, by name.
func waits(s *msg.Socket) map[string]func(context.Context) error {
	l := s.Loop()
	return map[string]func(context.Context) error{
		"Run":        l.Run,
		"Listen":     func(ctx context.Context) error { return second(l.Listen(ctx, "10.9.0.1:0")) },
		"Dial":       func(ctx context.Context) error { return second(l.Dial(ctx, "10.9.0.1:1")) },
		"Wait":       s.Wait,
		"Send":       func(ctx context.Context) error { return s.Send(ctx, []byte("x")) },
		"SendBuffer": func(ctx context.Context) error { return s.SendBuffer(ctx, new(msg.Buffer)) },
		"Recv":       func(ctx context.Context) error { return second(s.Recv(ctx)) },
		"Messages": func(ctx context.Context) (err error) {
			for _, err = range s.Messages(ctx) {
			}
			return err
		},
		"Shutdown": s.Shutdown,
	}
}

// TestWaitInCallback calls what waits for the loop in a callback, which the loop
// waits for, and from another goroutine while the callback runs.
func TestWaitInCallback(t *testing.T) {
	ended := make(chan struct{})
	var once sync.Once
	inCallback := func(s *msg.Socket) {
		defer close(ended)
		var other sync.WaitGroup
		for name, wait := range waits(s) {
			if err := wait(context.Background()); !errors.Is(err, msg.ErrDispatching) {
				t.Errorf("%s in a callback: %v", name, err)
			}
			if name == "Run" {
				continue // which is refused to all
			}
			other.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := wait(ctx); errors.Is(err, msg.ErrDispatching) {
					t.Errorf("%s of another goroutine during a callback: %v", name, err)
				}
			})
		}
		other.Wait()
	}
	l := run(t, msg.Options{Callbacks: msg.Callbacks{Disconnected: func(s *msg.Socket, why error) {
		once.Do(func() { inCallback(s) }) // Dial makes sockets too
	}}})
	// There is no port 0 to connect to.
	labtest.Must(l.Connect("10.9.0.1:0", nil))(t)
	<-ended
}

// TestWaitBesideCallbacks calls methods that wait from many goroutines, on all
// threads, while callbacks run.
func TestWaitBesideCallbacks(t *testing.T) {
	const rounds = 300
	over := make(chan struct{}, rounds)
	l := run(t, msg.Options{Callbacks: msg.Callbacks{Disconnected: func(*msg.Socket, error) { over <- struct{}{} }}})
	s := labtest.Must(l.Connect("10.9.0.1:0", nil))(t)
	<-over
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Recv(ctx); errors.Is(err, msg.ErrDispatching) {
					t.Errorf("receive beside callbacks: %v", err)
					return
				}
			}
		})
	}
	for range rounds {
		labtest.Must(l.Connect("10.9.0.1:0", nil))(t)
		<-over
	}
	cancel()
	others.Wait()
}

// TestSendInMessage echoes with what waits, which is refused from the first
// message on, and stops no message: not only when the send queue is full.
func TestSendInMessage(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const n = 500
		var refused, posted int
		all := make(chan struct{})
		listening := make(chan *msg.Listener, 1)
		server := run(t, msg.Options{Callbacks: msg.Callbacks{
			Request: func(r *msg.Request) {
				ln := <-listening
				if err := second(ln.Accept(context.Background())); !errors.Is(err, msg.ErrDispatching) {
					t.Errorf("accept in a callback: %v", err)
				}
				r.Accept(nil)
			},
			Message: func(s *msg.Socket, b *msg.Buffer) {
				defer b.Free()
				if err := s.Send(context.Background(), b.Bytes()); errors.Is(err, msg.ErrDispatching) {
					refused++
				}
				if answer, err := s.Alloc(1); err != nil {
					t.Error(err)
				} else if s.Post(answer) == nil {
					posted++
				} else {
					answer.Free()
				}
				if refused == n {
					close(all)
				}
			},
			Sent: func(s *msg.Socket, b *msg.Buffer) { b.Free() },
		}})
		ln := listen(t, server, device)
		listening <- ln
		c := labtest.Must(run(t, msg.Options{}).Dial(within(t), ln.Addr().String()))(t)
		for range n {
			if err := c.Send(within(t), make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-all:
		case <-within(t).Done():
			t.Fatal("not every Send was refused")
		}
		if posted == 0 {
			t.Error("nothing was posted")
		}
	})
}

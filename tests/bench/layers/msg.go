package main

import (
	"context"
	"errors"
	"log"
	"sync/atomic"

	"github.com/goverbs/verbs/rmsg"
)

const buffers = 64 // with which the client sends

// client sends messages, in buffers that it posts again when they have been sent.
type client struct {
	loop   *rmsg.Loop
	socket *rmsg.Socket
	free   []*rmsg.Buffer
	todo   atomic.Int64 // messages to post
	left   atomic.Int64 // messages not sent yet, plus the server's answer
	done   chan error
}

func dialMsg(ctx context.Context, addr string, w work) (sender, error) {
	c := &client{done: make(chan error, 1)}
	var err error
	c.loop, err = rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
		Sent: func(_ *rmsg.Socket, b *rmsg.Buffer) {
			c.post(b)
			c.ended()
		},
		Message: func(_ *rmsg.Socket, b *rmsg.Buffer) {
			b.Free()
			c.ended()
		},
		Disconnected: func(_ *rmsg.Socket, why error) { c.done <- why },
	}})
	if err != nil {
		return nil, err
	}
	go c.loop.Run(ctx)
	dialer := rmsg.Dialer{Loop: c.loop}
	dialer.PrivateData = w.bytes()
	if c.socket, err = dialer.Dial(ctx, addr); err != nil {
		return nil, err
	}
	for range buffers {
		b, err := c.socket.Alloc(int(w.Size))
		if err != nil {
			return nil, err
		}
		c.free = append(c.free, b)
	}
	return c, nil
}

func (c *client) send(_ context.Context, n int) error {
	c.todo.Store(int64(n))
	c.left.Store(int64(n) + 1)
	for _, b := range c.free {
		c.post(b)
	}
	return <-c.done
}

// post sends a buffer if messages are left.
func (c *client) post(b *rmsg.Buffer) {
	if c.todo.Add(-1) < 0 {
		return
	}
	if err := c.socket.Post(b); err != nil {
		c.done <- err
	}
}

func (c *client) ended() {
	if c.left.Add(-1) == 0 {
		c.done <- nil
	}
}

func (c *client) close() error {
	return errors.Join(c.socket.Shutdown(context.Background()), c.loop.Close())
}

// received is the state of a client at the server.
type received struct {
	n    int // messages received
	next int // when to answer
	work
}

func serveMsg(ctx context.Context, addr string, ready func()) error {
	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
		Request: func(r *rmsg.Request) {
			w, err := workOf(r.PrivateData())
			if err != nil {
				log.Fatal(err)
			}
			s, err := r.Accept(rmsg.ConnOptions{})
			if err != nil {
				log.Fatal(err)
			}
			s.Value = &received{next: 1, work: w}
		},
		Message: func(s *rmsg.Socket, b *rmsg.Buffer) {
			b.Free()
			c := s.Value.(*received)
			if c.n++; c.n < c.next {
				return
			}
			c.n, c.next = 0, int(c.N)+1-c.next
			answer, err := s.Alloc(1)
			if err == nil {
				err = s.Post(answer)
			}
			if err != nil {
				log.Fatal(err)
			}
		},
		Sent: func(_ *rmsg.Socket, b *rmsg.Buffer) { b.Free() },
	}})
	if err != nil {
		return err
	}
	if _, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, addr); err != nil {
		return err
	}
	ready()
	return loop.Run(ctx)
}

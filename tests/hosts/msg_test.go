package hosts

import (
	"context"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
)

// msgLayer is msg: messages that come back, small ones and large ones.
var msgLayer = layer{name: "rmsg", serve: serveMsg, dial: dialMsg, died: []error{verbs.ErrDisconnected, rmsg.ErrUnreadable, verbs.WCFlushErr}}

func serveMsg(ctx context.Context, addr string) (string, error) {
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		return "", err
	}
	go func() {
		loop.Run(ctx)
		loop.Close()
	}()
	l, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, addr)
	if err != nil {
		return "", err
	}
	go listen(func() (*rmsg.Socket, error) { return l.Accept(ctx) }, func(s *rmsg.Socket) {
		defer s.Close()
		for b, err := range s.Messages(ctx) {
			if err != nil || s.Send(ctx, b) != nil {
				return
			}
		}
	})
	return l.Addr().String(), nil
}

type msgSession struct {
	loop *rmsg.Loop
	s    *rmsg.Socket

	empty *rmsg.Buffer // poke's
}

func dialMsg(ctx context.Context, addr string) (session, error) {
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		return nil, err
	}
	go loop.Run(context.WithoutCancel(ctx)) // until it is closed
	s, err := (&rmsg.Dialer{Loop: loop}).Dial(ctx, addr)
	if err != nil {
		loop.Close()
		return nil, err
	}
	return &msgSession{loop: loop, s: s}, nil
}

func (m *msgSession) round(ctx context.Context, number, n int) error {
	const several = 4
	sizes := [several]int{n, 1, 1000, n / 2}
	for i, n := range sizes {
		if err := m.s.Send(ctx, fill(make([]byte, n), number+i)); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	for i, n := range sizes {
		b, err := m.s.Recv(ctx)
		for err == nil && len(b.Bytes()) == 0 { // an answer to poke's
			b.Free()
			b, err = m.s.Recv(ctx)
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		err = wrong("message", b.Bytes(), fill(make([]byte, n), number+i))
		b.Free()
		if err != nil {
			return err
		}
	}
	return nil
}

// poke sends an empty message, of which rounds take no notice.
func (m *msgSession) poke() {
	if m.empty == nil {
		m.empty, _ = m.s.Alloc(0)
	}
	if m.empty != nil && m.empty.Status() != rmsg.Queued {
		m.s.Post(m.empty)
	}
}

func (m *msgSession) Close() error {
	err := m.loop.Close()
	if m.empty != nil {
		m.empty.Free()
	}
	return err
}

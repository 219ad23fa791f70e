package harness

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
)

// teller is the dialing end on layer msg: a round is a message each way that
// the other side reads, and a short one.
type teller struct {
	loop    *rmsg.Loop
	run     chan error
	s       *rmsg.Socket
	n       uint64
	scratch []byte
}

const short = 512

func say(ctx context.Context, s *rmsg.Socket, b []byte, seed uint64) error {
	if err := s.Send(ctx, fill(b, seed)); err != nil {
		return err
	}
	return s.Send(ctx, fill(b[:short], ^seed))
}

func hear(ctx context.Context, s *rmsg.Socket, seed uint64) error {
	for _, want := range []struct {
		n    int
		seed uint64
	}{{chunk, seed}, {short, ^seed}} {
		b, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		if len(b.Bytes()) != want.n {
			return fmt.Errorf("%w: %d bytes in place of %d", errCorrupt, len(b.Bytes()), want.n)
		}
		if err := verify(b.Bytes(), want.seed); err != nil {
			return err
		}
		if err := b.Free(); err != nil {
			return err
		}
	}
	return nil
}

func newTeller() (*teller, error) {
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		return nil, err
	}
	t := &teller{loop: loop, run: make(chan error, 1), scratch: make([]byte, chunk)}
	go func() { t.run <- loop.Run(context.Background()) }()
	return t, nil
}

func dialMsg(ctx context.Context, addr string) (session, error) {
	t, err := newTeller()
	if err != nil {
		return nil, err
	}
	if t.s, err = (&rmsg.Dialer{Loop: t.loop}).Dial(ctx, addr); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *teller) Round(ctx context.Context) error {
	if err := say(ctx, t.s, t.scratch, request(t.n)); err != nil {
		return err
	}
	t.n++
	return hear(ctx, t.s, answer(t.n-1))
}

func (t *teller) Close() error {
	err := t.loop.Close()
	if run := <-t.run; !errors.Is(run, verbs.ErrClosed) {
		err = errors.Join(err, run)
	}
	return err
}

func serveMsg(ctx context.Context, addr string, ready func(string)) error {
	t, err := newTeller()
	if err != nil {
		return err
	}
	defer t.Close()
	l, err := (&rmsg.ListenConfig{Loop: t.loop}).Listen(ctx, addr)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	for {
		s, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			defer s.Close()
			scratch := make([]byte, chunk)
			for n := uint64(0); ; n++ {
				err := hear(ctx, s, request(n))
				if err == nil {
					err = say(ctx, s, scratch, answer(n))
				}
				if err != nil {
					report(err)
					return
				}
			}
		}()
	}
}

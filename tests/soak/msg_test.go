package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
)

// longest is the most bytes of a message of the layer msg.
const longest = 1 << 20

// messages is how many the holder of a key sends.
func (k key) messages() uint64 { return uint64(1 + k%61) }

// loop runs a loop until the returned function is called.
func loop(s *side) (*rmsg.Loop, func() error, error) {
	l, err := rmsg.NewLoop(rmsg.Options{MaxMessage: longest, ConnectTimeout: time.Minute, Linger: time.Minute})
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Run(context.Background()) }()
	return l, func() error {
		if err := l.Close(); err != nil {
			return err
		}
		if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
			return fmt.Errorf("the loop ended with %w", err)
		}
		return nil
	}, nil
}

// sendAll sends the messages of a key, some from buffers of the socket's, some
// copied.
func sendAll(ctx context.Context, s *rmsg.Socket, k key, n *count) error {
	room := make([]byte, longest)
	for seq := range k.messages() {
		b := k.message(seq, longest, room)
		var err error
		if seq%3 == 0 {
			err = sendBuffer(ctx, s, b)
		} else {
			err = s.Send(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("send message %d of key %#x: %w", seq, k, err)
		}
		if n != nil {
			n.add(len(b))
		}
	}
	return nil
}

func sendBuffer(ctx context.Context, s *rmsg.Socket, message []byte) error {
	b, err := s.Alloc(len(message))
	if err != nil {
		return err
	}
	copy(b.Bytes(), message)
	if err := s.SendBuffer(ctx, b); err != nil {
		b.Free()
		return err
	}
	for b.Status() == rmsg.Queued {
		select {
		case <-ctx.Done():
			return fmt.Errorf("buffer is queued still: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	if err := b.Err(); err != nil {
		return err
	}
	return b.Free()
}

// receiveAll takes all that the holder of a key sends.
func receiveAll(ctx context.Context, s *rmsg.Socket, k key, n *count) error {
	for seq := range k.messages() {
		b, err := s.Recv(ctx)
		if err != nil {
			return fmt.Errorf("receive message %d of %d, of key %#x: %w", seq, k.messages(), k, err)
		}
		if err := k.check(seq, longest, b.Bytes()); err != nil {
			return err
		}
		if n != nil {
			n.add(len(b.Bytes()))
		}
		if err := b.Free(); err != nil {
			return err
		}
	}
	return nil
}

// bothWays sends and receives at once.
func bothWays(ctx context.Context, s *rmsg.Socket, mine key, n *count) error {
	sent := make(chan error, 1)
	go func() { sent <- sendAll(ctx, s, mine, n) }()
	err := receiveAll(ctx, s, mine.answers(), n)
	if err != nil {
		s.Close()
	}
	return errors.Join(err, <-sent)
}

// serveMsg sends as it receives, until the peer disconnects.
func serveMsg(s *side) (service, error) {
	l, end, err := loop(s)
	if err != nil {
		return service{}, err
	}
	ln, err := (&rmsg.ListenConfig{Loop: l, AnswerTimeout: time.Minute}).Listen(s.ctx, s.addr()+":0")
	if err != nil {
		return service{}, errors.Join(err, end())
	}
	serve := func(ctx context.Context, c *rmsg.Socket) error {
		defer c.Close()
		if err := c.Wait(ctx); err != nil {
			return err
		}
		mine := key(binary.BigEndian.Uint64(c.PrivateData())).answers()
		if err := bothWays(ctx, c, mine, nil); err != nil {
			return err
		}
		if b, err := c.Recv(ctx); err == nil {
			return fmt.Errorf("%d bytes more than key %#x has sent", len(b.Bytes()), mine.answers())
		} else if err != io.EOF {
			return fmt.Errorf("after all messages of key %#x: %w", mine.answers(), err)
		}
		return nil
	}
	listen(s, "rmsg", func() (*rmsg.Socket, error) { return ln.Accept(s.ctx) }, serve)
	return service{ln.Addr().String(), ln.Close, end}, nil
}

func dialMsg(s *side, addr string, n *count) (client, error) {
	l, end, err := loop(s)
	if err != nil {
		return client{}, err
	}
	life := func(ctx context.Context, r *rand.Rand) error {
		mine := key(r.Uint64())
		dialer := rmsg.Dialer{Loop: l}
		dialer.PrivateData = binary.BigEndian.AppendUint64(nil, uint64(mine))
		c, err := dialer.Connect(addr)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.Wait(ctx); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		if err := bothWays(ctx, c, mine, n); err != nil {
			return err
		}
		if err := c.Shutdown(ctx); err != nil {
			return fmt.Errorf("shut down: %w", err)
		}
		return nil
	}
	return client{life, end}, nil
}

package workload

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

// RMsg uses package rmsg: both sides send messages of all sizes while they receive, some
// copied and some from buffers of the connection.
var RMsg = &Layer{
	Name: "rmsg", Listen: listenMsg,
	Dial: func(ctx context.Context, addr string) (Session, error) {
		loop, end, err := RunLoop(MsgOptions)
		if err != nil {
			return nil, err
		}
		s, err := DialMsg(ctx, loop, addr)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		s.end = end
		return s, nil
	},
	PeerGoneErrors: []error{verbs.ErrDisconnected, rmsg.ErrUnreadable, verbs.WCFlushErr},
}

// MsgOptions are the options of all loops.
var MsgOptions rmsg.Options

// RunLoop runs a loop until end is called.
func RunLoop(opt rmsg.Options) (loop *rmsg.Loop, end func() error, err error) {
	if loop, err = rmsg.NewLoop(opt); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(context.Background()) }()
	return loop, func() error {
		err := loop.Close()
		if run := <-ended; !errors.Is(run, verbs.ErrClosed) {
			err = errors.Join(err, run)
		}
		return errors.Join(err, loop.Close())
	}, nil
}

// Socket is an end of layer RMsg.
type Socket struct {
	*rmsg.Conn

	side
	end  func() error
	poke *rmsg.Buffer
}

// pokeMessage is a message that receivers ignore.
const pokeMessage = "poke"

// send sends the next message, of n bytes.
func (p *Socket) send(ctx context.Context, n int) (err error) {
	if p.sent%3 == 0 {
		err = p.sendBuffer(ctx, n)
	} else {
		err = p.Send(ctx, p.mine.Fill(make([]byte, n), p.sent))
	}
	if err != nil {
		return fmt.Errorf("send message %d of key %#x: %w", p.sent, p.mine, err)
	}
	p.sent++
	return nil
}

func (p *Socket) sendBuffer(ctx context.Context, n int) error {
	b, err := p.Alloc(n)
	if err != nil {
		return err
	}
	p.mine.Fill(b.Bytes(), p.sent)
	for err = p.Post(b); errors.Is(err, rmsg.ErrWouldBlock) && ctx.Err() == nil; err = p.Post(b) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		b.Free()
		return err
	}
	sent := make(chan error, 1)
	go func() { // which frees the buffer even if this call is cancelled
		for b.Status() == rmsg.Queued {
			time.Sleep(time.Millisecond)
		}
		sent <- errors.Join(b.Err(), b.Free())
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("buffer is queued still: %w", ctx.Err())
	case err := <-sent:
		return err
	}
}

// receive receives the next message, which must have n bytes unless n is negative.
func (p *Socket) receive(ctx context.Context, n int) (int, error) {
	b, err := p.Recv(ctx)
	for err == nil && string(b.Bytes()) == pokeMessage {
		b.Free()
		b, err = p.Recv(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("receive message %d of key %#x: %w", p.received, p.theirs, err)
	}
	if n < 0 {
		n = len(b.Bytes())
	}
	err = p.theirs.Check("message", b.Bytes(), p.received, n)
	p.received++
	return n, errors.Join(err, b.Free())
}

// bothWays sends messages of the given sizes while it calls receive.
func (p *Socket) bothWays(ctx context.Context, sizes <-chan int, receive func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		var err error
		for n := range sizes {
			if err == nil {
				if err = p.send(ctx, n); err != nil {
					cancel()
				}
			}
		}
		sent <- err
	}()
	err := receive(ctx)
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-sent)
}

func listenMsg(ctx context.Context, addr string, report func(error)) (*Server, error) {
	loop, end, err := RunLoop(MsgOptions)
	if err != nil {
		return nil, err
	}
	l, err := (&rmsg.ListenConfig{Loop: loop, AnswerTimeout: time.Minute}).Listen(ctx, addr)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return Serve(ctx, l, l.Accept, func(ctx context.Context, s *rmsg.Conn) error {
		defer s.Close()
		p := &Socket{Conn: s, side: newSide(Key(binary.BigEndian.Uint64(s.PrivateData())).Peer())}
		answers := make(chan int, 1000)
		return p.bothWays(ctx, answers, func(ctx context.Context) error {
			defer close(answers)
			for {
				n, err := p.receive(ctx, -1)
				if err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
				answers <- n
			}
		})
	}, report, end), nil
}

// DialMsg does the same as RMsg.Dial, with a shared loop, which Close does not close.
func DialMsg(ctx context.Context, loop *rmsg.Loop, addr string) (*Socket, error) {
	mine := Key(rand.Uint64())
	d := rmsg.Dialer{Loop: loop}
	d.PrivateData = binary.BigEndian.AppendUint64(nil, uint64(mine))
	s, err := d.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Socket{Conn: s, side: newSide(mine)}, nil
}

// Round sends messages while it receives as many of the same sizes.
func (p *Socket) Round(ctx context.Context, n int) error {
	n = min(n, 1<<20)
	all := append([]int{n, 1, 0, 1000, n / 2}, p.sizes(20, n)[1:]...)
	sizes := make(chan int, len(all))
	for _, n := range all {
		sizes <- n
	}
	close(sizes)
	return p.bothWays(ctx, sizes, func(ctx context.Context) error {
		for _, n := range all {
			if _, err := p.receive(ctx, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// Poke sends a message that the server ignores.
func (p *Socket) Poke() {
	if p.poke == nil {
		if p.poke, _ = p.Alloc(len(pokeMessage)); p.poke != nil {
			copy(p.poke.Bytes(), pokeMessage)
		}
	}
	if p.poke != nil && p.poke.Status() != rmsg.Queued {
		p.Post(p.poke)
	}
}

// Shutdown sends queued messages and waits until the server has seen the end.
func (p *Socket) Shutdown(ctx context.Context) error { return p.Conn.Shutdown(ctx) }

// Close closes the connection, and the loop if it has its own.
func (p *Socket) Close() error {
	if p.end == nil {
		return p.Conn.Close()
	}
	err := p.end()
	if p.poke != nil {
		p.poke.Free()
	}
	return err
}

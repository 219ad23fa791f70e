package rmsg

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// The methods that wait, for programs without callbacks. They need a goroutine in
// Run; if a call ends without one the error matches ErrNotRunning.

// Dial connects to addr and waits until the socket is established.
func (l *Loop) Dial(ctx context.Context, addr string) (*Socket, error) {
	if err := l.inCallback(); err != nil {
		return nil, fail("connect to", addr, err)
	}
	s, err := l.Connect(addr, nil)
	if err != nil {
		return nil, err
	}
	if err := s.Wait(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Wait waits until the socket is established, or has failed. ConnectTimeout
// bounds it even if nothing runs the loop.
func (s *Socket) Wait(ctx context.Context) error {
	const op = "connect to"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	select {
	case <-s.up:
		return nil
	default:
	}
	if err := s.await(ctx, s.up, s.l.opt.ConnectTimeout); err != nil {
		return fail(op, s.addr, err)
	}
	select {
	case <-s.up:
		return nil
	default:
		return fail(op, s.addr, s.Err())
	}
}

// await waits until ready is closed or the socket has ended. The loop keeps the
// time limit; await keeps it if nothing runs the loop.
func (s *Socket) await(ctx context.Context, ready <-chan struct{}, limit time.Duration) error {
	late := time.NewTicker(limit)
	defer late.Stop()
	for {
		rounds := s.l.rounds.Load()
		select {
		case <-ready:
			return nil
		case <-s.done:
			return nil
		case <-ctx.Done():
			return s.l.stalled(rounds, ctx.Err())
		case <-late.C:
			if err := s.l.stalled(rounds, ErrTimeout); errors.Is(err, ErrNotRunning) {
				return err
			}
		}
	}
}

// Send sends a message, which is copied, and waits as long as the send queue is
// full. When it returns the message is on its way; it is [Socket.Shutdown] that
// makes sure it has arrived.
func (s *Socket) Send(ctx context.Context, message []byte) error {
	if err := s.l.inCallback(); err != nil {
		return fail("send to", s.addr, err)
	}
	if err := s.Wait(ctx); err != nil {
		return err
	}
	b, err := s.Alloc(len(message))
	if err != nil {
		return err
	}
	copy(b.Bytes(), message)
	b.auto = true
	if err := s.SendBuffer(ctx, b); err != nil {
		b.Free()
		return err
	}
	return nil
}

// SendBuffer is [Socket.Post] that waits as long as the send queue is full.
func (s *Socket) SendBuffer(ctx context.Context, b *Buffer) error {
	const op = "send to"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	rounds := s.l.rounds.Load()
	for {
		err := s.Post(b)
		if err != ErrWouldBlock {
			signal(s.writable) // others may wait, too
			return err
		}
		select {
		case <-s.writable:
		case <-s.ctx.Done():
		case <-ctx.Done():
			return fail(op, s.addr, s.l.stalled(rounds, ctx.Err()))
		}
	}
}

// Recv waits for a message. The program frees the buffer, which lets the peer
// send more. When the socket has ended, Recv returns the messages that came
// before and then its error: io.EOF if the peer disconnected. It is for loops
// without a Message callback.
func (s *Socket) Recv(ctx context.Context) (*Buffer, error) {
	const op = "receive from"
	if err := s.l.inCallback(); err != nil {
		return nil, fail(op, s.addr, err)
	}
	rounds := s.l.rounds.Load()
	for {
		s.mu.Lock()
		if s.ready() && !s.closed {
			b := s.pop()
			if s.ready() {
				signal(s.readable) // others may wait, too
			}
			s.mu.Unlock()
			return b, nil
		}
		over := s.closed || s.state == Disconnected
		err := s.err
		s.mu.Unlock()
		if over && err == io.EOF {
			return nil, err // as it is, as everywhere
		}
		if over {
			return nil, fail(op, s.addr, err)
		}
		select {
		case <-s.readable:
		case <-s.done:
		case <-ctx.Done():
			return nil, fail(op, s.addr, s.l.stalled(rounds, ctx.Err()))
		}
	}
}

// Messages yields messages until the socket ends, ctx does, or the loop is left.
// Each is freed when the loop's body has done with it. The last that it yields
// is the error, unless the peer disconnected in good order.
func (s *Socket) Messages(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for {
			b, err := s.Recv(ctx)
			if err != nil {
				if !isEOF(err) {
					yield(nil, err)
				}
				return
			}
			more := yield(b.Bytes(), nil)
			b.Free()
			if !more {
				return
			}
		}
	}
}

// Shutdown is [Socket.Disconnect] that waits until it is done: everything that
// was sent has arrived then. If ctx ends first the socket is closed, and the
// error is ctx's.
func (s *Socket) Shutdown(ctx context.Context) error {
	const op = "disconnect from"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	s.Disconnect()
	if err := s.await(ctx, nil, s.l.opt.Linger); err != nil {
		s.Close()
		return fail(op, s.addr, err)
	}
	if err := s.Err(); !isClosed(err) && !isEOF(err) {
		return fail(op, s.addr, err)
	}
	return nil
}

package rmsg

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// The methods below wait, for programs without callbacks. A goroutine must run the loop;
// if none does when a call ends, the error matches ErrNotRunning.

// Wait waits until the socket is established, or has failed. ConnectTimeout
// bounds it even if nothing runs the loop.
func (s *Socket) Wait(ctx context.Context) error {
	const op = "connect to"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	return fail(op, s.addr, s.waitEstablished(ctx))
}

func (s *Socket) waitEstablished(ctx context.Context) error {
	select {
	case <-s.establishedCh:
		return nil
	default:
	}
	if err := s.await(ctx, s.establishedCh, s.l.opt.ConnectTimeout); err != nil {
		return err
	}
	select {
	case <-s.establishedCh:
		return nil
	default:
		return s.Err()
	}
}

// await waits until ready is closed or the socket has ended. The loop enforces the time
// limit; await enforces it if nothing runs the loop.
func (s *Socket) await(ctx context.Context, ready <-chan struct{}, limit time.Duration) error {
	late := time.NewTicker(limit)
	defer late.Stop()
	for {
		count := s.l.counts.dispatches.Load()
		select {
		case <-ready:
			return nil
		case <-s.done:
			return nil
		case <-ctx.Done():
			return s.l.addNotRunning(count, ctx.Err())
		case <-late.C:
			if err := s.l.addNotRunning(count, ErrTimeout); errors.Is(err, ErrNotRunning) {
				return err
			}
		}
	}
}

// Send copies a message and queues it. It waits while the send queue is full, and while
// earlier messages fill Options.SendBuffer or Options.Window. When it returns, the
// message has been queued; [Socket.Shutdown] waits until it has arrived.
func (s *Socket) Send(ctx context.Context, message []byte) error {
	const op = "send to"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	if err := s.Wait(ctx); err != nil {
		return err
	}
	count := s.l.counts.dispatches.Load()
	b, err := s.alloc(len(message), true)
	if err == ErrWouldBlock {
		s.mu.Lock()
		if s.state != Disconnected { // the sums have its counters already
			s.stats.BufferWaits++
		}
		s.mu.Unlock()
	}
	for err == ErrWouldBlock {
		if err := s.awaitRoom(ctx, s.out.sendRoom, count); err != nil {
			return fail(op, s.addr, err)
		}
		b, err = s.alloc(len(message), true)
	}
	if err != nil {
		return fail(op, s.addr, err)
	}
	signal(s.out.sendRoom) // for the next waiter
	copy(b.Bytes(), message)
	if err := s.SendBuffer(ctx, b); err != nil {
		b.Free()
		return err
	}
	return nil
}

// awaitRoom waits for a signal that there may be room to send, or for the end of the
// socket.
func (s *Socket) awaitRoom(ctx context.Context, room <-chan struct{}, count uint64) error {
	select {
	case <-room:
	case <-s.ctx.Done():
	case <-ctx.Done():
		return s.l.addNotRunning(count, ctx.Err())
	}
	return nil
}

// SendBuffer posts a buffer as [Socket.Post] does, but waits while the send queue is full.
func (s *Socket) SendBuffer(ctx context.Context, b *Buffer) error {
	const op = "send to"
	if err := s.l.inCallback(); err != nil {
		return fail(op, s.addr, err)
	}
	count := s.l.counts.dispatches.Load()
	for {
		err := s.Post(b)
		if err != ErrWouldBlock {
			signal(s.out.writable) // for the next waiter
			return err
		}
		if err := s.awaitRoom(ctx, s.out.writable, count); err != nil {
			return fail(op, s.addr, err)
		}
	}
}

// Recv waits for a message. The program frees the buffer, which lets the peer
// send more. After the end of the socket, Recv returns the messages received before and
// then the socket's error: io.EOF if the peer disconnected. It is for loops without a
// Message callback.
func (s *Socket) Recv(ctx context.Context) (*Buffer, error) {
	const op = "receive from"
	if err := s.l.inCallback(); err != nil {
		return nil, fail(op, s.addr, err)
	}
	count := s.l.counts.dispatches.Load()
	for {
		s.mu.Lock()
		if s.in.ready() && !s.closed {
			b := s.in.pop()
			if s.in.ready() {
				signal(s.in.readable) // for the next waiter
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
		case <-s.in.readable:
		case <-s.done:
		case <-ctx.Done():
			return nil, fail(op, s.addr, s.l.addNotRunning(count, ctx.Err()))
		}
	}
}

// Messages yields messages until the socket or ctx ends. Each is freed when the loop's
// body has returned. At the end it yields the error, unless the peer called Disconnect:
// [verbs.ErrClosed] if the program itself did.
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

// Shutdown disconnects as [Socket.Disconnect] does, and waits until it is done: all
// messages that were sent have arrived then. If ctx ends first the socket is closed, and
// Shutdown returns ctx's error.
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

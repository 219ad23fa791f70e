package rmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// The methods below wait, for programs without callbacks. A goroutine must run the loop;
// if none does when a call ends, the error matches ErrNotRunning.

// waitEstablished waits until the connection is established or has failed. ConnectTimeout bounds it
// even if nothing runs the loop.
func (c *Conn) waitEstablished(ctx context.Context) error {
	for waited := false; ; waited = true {
		select {
		case <-c.establishedCh:
			return nil
		default:
		}
		if waited {
			return c.Err()
		}
		if err := c.await(ctx, c.establishedCh, c.l.opt.ConnectTimeout); err != nil {
			return err
		}
	}
}

// await waits until ready is closed or the connection has ended. The loop enforces the limit, or
// await does if nothing runs the loop.
func (c *Conn) await(ctx context.Context, ready <-chan struct{}, limit time.Duration) error {
	late := time.NewTicker(limit)
	defer late.Stop()
	for {
		select {
		case <-ready:
			return nil
		case <-c.done:
			return nil
		case <-ctx.Done():
			return c.l.addNotRunning(host.Ended(ctx))
		case <-late.C:
			if err := c.l.addNotRunning(fmt.Errorf("wait for %v: %w", limit, ErrTimeout)); errors.Is(err, ErrNotRunning) {
				return err
			}
		}
	}
}

// Send copies a message and queues it. It waits until the connection is established and has room
// for the message. [Conn.Shutdown] waits until it has arrived.
func (c *Conn) Send(ctx context.Context, message []byte) error {
	return fail("send to", c.addr, c.send(ctx, message))
}

func (c *Conn) send(ctx context.Context, message []byte) error {
	if err := c.waitEstablished(ctx); err != nil {
		return err
	}
	b, err := c.alloc(len(message), true)
	if err == ErrWouldBlock {
		c.mu.Lock()
		if c.state != Disconnected { // the sums have its counters already
			c.stats.BufferWaits++
		}
		c.mu.Unlock()
	}
	for err == ErrWouldBlock {
		if err := c.awaitRoom(ctx, c.out.sendRoom); err != nil {
			return err
		}
		b, err = c.alloc(len(message), true)
	}
	signal(c.out.sendRoom) // for the next waiter, also if there was no memory for this one
	if err != nil {
		return err
	}
	copy(b.Bytes(), message)
	for {
		if err = c.post(b); err != ErrWouldBlock {
			signal(c.out.writable) // for the next waiter
			break
		}
		if err = c.awaitRoom(ctx, c.out.writable); err != nil {
			break
		}
	}
	if err != nil {
		b.Free()
	}
	return err
}

// awaitRoom waits for a signal that there may be room to send, or for the end of the connection.
func (c *Conn) awaitRoom(ctx context.Context, room <-chan struct{}) error {
	select {
	case <-room:
	case <-c.ctx.Done():
	case <-ctx.Done():
		return c.l.addNotRunning(host.Ended(ctx))
	}
	return nil
}

// Recv waits for a message, on loops without a Message callback. The program frees the buffer,
// which lets the peer send more. After the end of the connection, Recv returns the messages
// received before and then the connection's Err: io.EOF if the peer disconnected.
func (c *Conn) Recv(ctx context.Context) (*Buffer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.received() {
		defer c.in.began.End(c.in.began.Begin())
	}
	for !c.received() {
		c.mu.Unlock()
		var err error
		select {
		case <-c.in.readable:
		case <-c.done:
		case <-ctx.Done():
			err = fail("receive from", c.addr, c.l.addNotRunning(host.Ended(ctx)))
		}
		c.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	switch {
	case c.in.ready() && !c.closed:
		b := c.in.pop()
		if c.in.ready() {
			signal(c.in.readable) // for the next waiter
		}
		return b, nil
	case c.err == io.EOF:
		return nil, io.EOF // unwrapped, as everywhere
	}
	return nil, fail("receive from", c.addr, c.err)
}

// received reports whether Recv need not wait. The caller holds mu.
func (c *Conn) received() bool { return c.in.ready() || c.closed || c.state == Disconnected }

// Shutdown disconnects as [Conn.Disconnect] does, and waits until all messages have arrived. If ctx
// ends first, it closes the connection and returns ctx's error. It fails if messages are lost, also
// by Close.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.Disconnect()
	err := c.await(ctx, nil, c.l.opt.Linger)
	if err != nil {
		c.Close()
	} else if err = c.Err(); !read(c, &c.lost) && (errors.Is(err, verbs.ErrClosed) || errors.Is(err, io.EOF)) {
		return nil
	}
	return fail("disconnect from", c.addr, err)
}

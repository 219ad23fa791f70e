package main

import (
	"context"
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rconn"
)

const (
	batch  = 32  // messages received until the sender is notified
	window = 128 // messages sent without a notification
)

// end is one end of a connection of package rconn. The server answers each batch of
// messages with a message of one byte.
type end struct {
	*rconn.Conn
	data, word *rconn.LocalRegion
	wcs        [batch]verbs.WC
}

// options returns the options of a connection; receives is set on the receiver of messages.
func (e *end) options(w work, receives bool) rconn.Options {
	return rconn.Options{SendQueue: 256, RecvQueue: 256, PrivateData: w.bytes(), Setup: func(c *rconn.Conn) (err error) {
		e.Conn = c
		if e.data, err = c.Alloc(int(w.Size), rconn.LocalWrite); err != nil {
			return err
		}
		if e.word, err = c.Alloc(1, rconn.LocalWrite); err != nil {
			return err
		}
		into, n := e.word, 2*window/batch
		if receives {
			into, n = e.data, 2*window
		}
		for range n {
			if err := c.PostRecv(0, into.All()); err != nil {
				return err
			}
		}
		return nil
	}}
}

// await waits for n completions, and returns an error if one has failed.
func (e *end) await(ctx context.Context, d rconn.Direction, n int) error {
	if err := e.Await(ctx, d, e.wcs[:n]); err != nil {
		return err
	}
	for i := range e.wcs[:n] {
		if err := e.wcs[i].Err(); err != nil {
			return err
		}
	}
	return nil
}

func dialConn(ctx context.Context, addr string, w work) (sender, error) {
	e := new(end)
	_, err := (&rconn.Dialer{Options: e.options(w, false)}).Dial(ctx, addr)
	return e, err
}

func (e *end) send(ctx context.Context, n int) error {
	for sent, heard := 0, 0; heard < n; heard += batch {
		for ; sent < min(n, heard+window); sent++ {
			var flags verbs.SendFlags
			if sent%batch == batch-1 || sent == n-1 {
				flags = verbs.SendSignaled
			}
			if err := e.PostSend(0, flags, e.data.All()); err != nil {
				return err
			}
		}
		if err := e.await(ctx, rconn.Recvs, 1); err != nil {
			return err
		}
		if err := e.PostRecv(0, e.word.All()); err != nil {
			return err
		}
		if err := e.await(ctx, rconn.Sends, 1); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) close() error { return e.Close() }

func serveConn(ctx context.Context, addr string, ready func()) error {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return err
	}
	ready()
	for {
		r, err := l.Accept(ctx)
		if err == nil {
			err = answerConn(ctx, r)
		}
		if err != nil {
			return err
		}
	}
}

// answerConn serves a client until it disconnects.
func answerConn(ctx context.Context, r *rconn.Request) error {
	w, err := workOf(r.PrivateData())
	if err != nil {
		return err
	}
	e := new(end)
	if _, err := r.Accept(ctx, e.options(w, true)); err != nil {
		return err
	}
	for err == nil {
		if err = e.receive(ctx, 1); err == nil {
			err = e.receive(ctx, int(w.N))
		}
	}
	// The client disconnects when it is done, which fails the receives.
	if gone := e.AwaitDisconnect(ctx); gone != nil {
		return errors.Join(err, gone, e.Close())
	}
	return e.Close()
}

func (e *end) receive(ctx context.Context, n int) error {
	for ; n > 0; n -= batch {
		k := min(n, batch)
		if err := e.await(ctx, rconn.Recvs, k); err != nil {
			return err
		}
		for range k {
			if err := e.PostRecv(0, e.data.All()); err != nil {
				return err
			}
		}
		if err := e.PostSend(0, verbs.SendSignaled, e.word.All()); err != nil {
			return err
		}
		if err := e.await(ctx, rconn.Sends, 1); err != nil {
			return err
		}
	}
	return nil
}

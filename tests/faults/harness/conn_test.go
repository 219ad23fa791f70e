package harness

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
)

// party is one end on layer conn: a round is a Put, a message each way and a
// Get.
type party struct {
	c       *rconn.Conn
	store   *rconn.LocalRegion // what the peer writes to and reads from
	mail    *rconn.LocalRegion // of messages: the one to send, and those that come
	n       uint64
	scratch []byte
}

func (p *party) options() rconn.Options {
	return rconn.Options{Setup: func(c *rconn.Conn) (err error) {
		if p.store, err = c.Alloc(2*chunk, rconn.ReadWrite); err != nil {
			return err
		}
		if p.mail, err = c.Alloc(8*(receives+1), rconn.LocalWrite); err != nil {
			return err
		}
		for i := 1; i <= receives; i++ {
			if err := c.PostRecv(uint64(i), p.mail.Span(8*i, 8)); err != nil {
				return err
			}
		}
		p.scratch = make([]byte, chunk)
		return c.Announce(1, p.store.All())
	}}
}

func (p *party) send(ctx context.Context) error {
	binary.LittleEndian.PutUint64(p.mail.Bytes(), p.n)
	if err := p.c.PostSend(0, verbs.SendSignaled, p.mail.Span(0, 8)); err != nil {
		return p.why(err)
	}
	var wc [1]verbs.WC
	if err := p.c.Await(ctx, rconn.Sends, wc[:]); err != nil {
		return err
	}
	return p.why(cm.SendError(&wc[0]))
}

func (p *party) recv(ctx context.Context) error {
	var wc [1]verbs.WC
	if err := p.c.Await(ctx, rconn.Recvs, wc[:]); err != nil {
		return err
	}
	if err := wc[0].Err(); err != nil {
		return p.why(err)
	}
	i := int(wc[0].ID)
	if got := binary.LittleEndian.Uint64(p.mail.Bytes()[8*i:]); got != p.n {
		return fmt.Errorf("%w: message %d in place of %d", errCorrupt, got, p.n)
	}
	return p.why(p.c.PostRecv(wc[0].ID, p.mail.Span(8*i, 8)))
}

func (p *party) why(err error) error {
	return because(err, p.c.Done(), p.c.Err)
}

func (p *party) Round(ctx context.Context) error {
	theirs := p.c.Adverts()[0]
	if err := p.c.Put(ctx, theirs.At(0), fill(p.scratch, request(p.n))); err != nil {
		return p.why(err)
	}
	if err := p.send(ctx); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := p.recv(ctx); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if err := p.c.Get(ctx, p.scratch, theirs.At(chunk)); err != nil {
		return p.why(err)
	}
	p.n++
	return verify(p.scratch, answer(p.n-1))
}

func (p *party) Close() error { return p.c.Close() }

func dialConn(ctx context.Context, addr string) (session, error) {
	p := new(party)
	var err error
	p.c, err = (&rconn.Dialer{Options: p.options()}).Dial(ctx, addr)
	return p, err
}

func serveConn(ctx context.Context, addr string, ready func(string)) error {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	ready(l.Addr().String())
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			p := new(party)
			var err error
			if p.c, err = r.Accept(ctx, p.options()); err != nil {
				report(err)
				return
			}
			defer p.Close()
			report(p.serve(ctx))
		}()
	}
}

func (p *party) serve(ctx context.Context) error {
	for ; ; p.n++ {
		if err := p.recv(ctx); err != nil {
			return err
		}
		if err := verify(p.store.Bytes()[:chunk], request(p.n)); err != nil {
			return err
		}
		fill(p.store.Bytes()[chunk:], answer(p.n))
		if err := p.send(ctx); err != nil {
			return err
		}
	}
}

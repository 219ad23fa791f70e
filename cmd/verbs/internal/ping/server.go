package ping

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// listener receives connection requests, through package cm or by hand.
type listener interface {
	Addr() cm.Addr
	// next waits for a request and returns the function that accepts it.
	next(ctx context.Context) (accept, error)
	Close() error
}

// accept connects p. It must be called once. With a context that has ended it rejects the
// request.
type accept func(ctx context.Context, p *peer) error

type cmListener struct{ *cm.Listener }

func (l cmListener) next(ctx context.Context) (accept, error) {
	r, err := l.Accept(ctx)
	return func(ctx context.Context, p *peer) error {
		_, err := r.Accept(ctx, p.options())
		return err
	}, err
}

func (c *Cmd) listen(ctx context.Context, addr string) (listener, error) {
	if c.ByHand {
		return listenByHand(addr)
	}
	l, err := cm.Listen(ctx, addr)
	return cmListener{l}, err
}

func (c *Cmd) server(ctx context.Context, addr string) error {
	l, err := c.listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintf(os.Stderr, "listening on %v\n", l.Addr())
	if c.Persistent {
		return c.serveAll(ctx, l)
	}
	accept, err := l.next(ctx)
	if err != nil {
		return cli.Cause(ctx, err)
	}
	return c.serve(ctx, accept)
}

// serveAll serves all clients concurrently. The failure of one does not affect the others.
func (c *Cmd) serveAll(ctx context.Context, l listener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		accept, err := l.next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			if err := c.serve(ctx, accept); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "verbs:", err)
			}
		})
	}
}

func (c *Cmd) serve(ctx context.Context, accept accept) (err error) {
	p := &peer{debug: c.Debug}
	if err := accept(ctx, p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	p.debugf("client %v connected", p.RemoteAddr())
	r := newResult("server", p)
	for err == nil {
		err = c.serveRound(ctx, p, r)
	}
	p.debugf("client %v left: %v", p.RemoteAddr(), err)
	if !errors.Is(err, verbs.ErrDisconnected) {
		return fmt.Errorf("client %v, round %d: %w", p.RemoteAddr(), r.Count, err)
	}
	if c.JSON {
		return r.print(true)
	}
	return nil
}

// serveRound reads the client's data and writes it back.
func (c *Cmd) serveRound(ctx context.Context, p *peer, r *result) error {
	source, err := p.receive(ctx)
	if err != nil {
		return err
	}
	if err := source.fits(); err != nil {
		return err
	}
	if err := p.transfer(ctx, verbs.OpRDMARead, source, source.size); err != nil {
		return err
	}
	r.Size = int(source.size)
	c.printData("server ping data", p.data.Bytes()[:r.Size])
	if err := p.send(ctx, p.data, r.Size); err != nil {
		return err
	}
	sink, err := p.receive(ctx)
	if err != nil {
		return err
	}
	if err := p.transfer(ctx, verbs.OpRDMAWrite, sink, source.size); err != nil {
		return err
	}
	r.Count++
	return p.send(ctx, p.data, r.Size)
}

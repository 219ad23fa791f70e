package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// pingListener takes requests for connections, by package cm or by hand.
type pingListener interface {
	Addr() cm.Addr
	next(ctx context.Context) (pingRequest, error)
	Close() error
}

// pingRequest is a peer that wants to connect. It is accepted, or with a
// context that has ended rejected, once.
type pingRequest interface {
	accept(ctx context.Context, p *pinger) error
}

type cmListener struct{ *cm.Listener }

func (l cmListener) next(ctx context.Context) (pingRequest, error) {
	r, err := l.Accept(ctx)
	return cmRequest{r}, err
}

type cmRequest struct{ *cm.Request }

func (r cmRequest) accept(ctx context.Context, p *pinger) error {
	_, err := r.Accept(ctx, p.options())
	return err
}

func (c *pingCmd) listen(ctx context.Context, addr string) (pingListener, error) {
	if c.ByHand {
		return listenByHand(addr)
	}
	l, err := cm.Listen(ctx, addr)
	return cmListener{l}, err
}

func (c *pingCmd) server(ctx context.Context, addr string) error {
	l, err := c.listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintf(os.Stderr, "listening on %v\n", l.Addr())
	if c.Persistent {
		return c.serveAll(ctx, l)
	}
	req, err := l.next(ctx)
	if err != nil {
		return pingpongCause(ctx, err)
	}
	return c.serve(ctx, req)
}

// serveAll serves all who come. That one fails is none of the others' business.
func (c *pingCmd) serveAll(ctx context.Context, l pingListener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := l.next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			if err := c.serve(ctx, req); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "verbs:", err)
			}
		})
	}
}

func (c *pingCmd) serve(ctx context.Context, req pingRequest) (err error) {
	p := &pinger{debug: c.Debug}
	if err := req.accept(ctx, p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	p.debugf("client %v connected", p.RemoteAddr())
	r := newPingResult("server", p, 0)
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

func (c *pingCmd) serveRound(ctx context.Context, p *pinger, r *pingResult) error {
	source, err := p.hear(ctx)
	if err != nil {
		return err
	}
	if err := source.fits(); err != nil {
		return err
	}
	if err := p.move(ctx, verbs.OpRDMARead, source, source.size); err != nil {
		return err
	}
	if c.Verbose {
		fmt.Fprintf(c.data(), "server ping data: %s\n", text(p.data.Bytes()[:source.size]))
	}
	if err := p.tell(ctx, p.data, int(source.size)); err != nil {
		return err
	}
	sink, err := p.hear(ctx)
	if err != nil {
		return err
	}
	if err := p.move(ctx, verbs.OpRDMAWrite, sink, source.size); err != nil {
		return err
	}
	if err := p.tell(ctx, p.data, int(source.size)); err != nil {
		return err
	}
	r.Count++
	r.Size = int(source.size)
	return nil
}

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

func (c *Cmd) server(ctx context.Context, addr string) error {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(os.Stderr, "listening on", l.Addr())
	if c.Persistent {
		return c.serveAll(ctx, l)
	}
	request, err := l.Accept(ctx)
	l.Close()
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted, as a server is
		}
		return err
	}
	return c.serve(ctx, request)
}

const maxClients = 64 // of a server: others are rejected

// serveAll serves clients concurrently. The failure of one does not affect the others.
func (c *Cmd) serveAll(ctx context.Context, l *cm.Listener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	slots := make(chan struct{}, maxClients)
	for {
		request, err := l.Accept(ctx)
		if ctx.Err() != nil {
			if err == nil {
				request.Reject(nil)
			}
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		default:
			request.Reject(nil)
			continue
		}
		clients.Go(func() {
			defer func() { <-slots }()
			if err := c.serve(ctx, request); err != nil && ctx.Err() == nil {
				cli.Warn(os.Stderr, err)
			}
		})
	}
}

func (c *Cmd) serve(ctx context.Context, request *cm.Request) (err error) {
	p := &peer{debug: c.Debug}
	if _, err := request.Accept(ctx, p.options()); err != nil {
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

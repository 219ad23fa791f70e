package ping

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

func (c *Cmd) server(ctx context.Context, addr string) error {
	listeners, err := cli.Families(addr, func(network, addr string) (*cm.Listener, error) {
		return (&cm.ListenConfig{IPv6Only: network == "rdma6"}).Listen(ctx, addr)
	})
	if err != nil {
		return err
	}
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	requests := make(chan accepted)
	var addrs []string
	for _, l := range listeners {
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
		go accept(accepting, l, requests)
	}
	fmt.Fprintln(os.Stderr, "listening on", strings.Join(addrs, " and "))
	if c.Persistent {
		return c.serveAll(ctx, requests)
	}
	var first accepted
	select {
	case first = <-requests:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	stop()
	if first.err != nil {
		return cli.Cause(ctx, first.err)
	}
	return c.serve(ctx, first.request)
}

// accepted is a result of Accept.
type accepted struct {
	request *cm.Request
	err     error
}

// accept sends what l accepts to requests, until there is an error or ctx ends.
func accept(ctx context.Context, l *cm.Listener, requests chan<- accepted) {
	for {
		request, err := l.Accept(ctx)
		select {
		case requests <- accepted{request, err}:
		case <-ctx.Done():
			if err == nil {
				request.Reject(nil)
			}
			return
		}
		if err != nil {
			return
		}
	}
}

// serveAll serves all clients concurrently. The failure of one does not affect the others.
func (c *Cmd) serveAll(ctx context.Context, requests <-chan accepted) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		var next accepted
		select {
		case next = <-requests:
		case <-ctx.Done():
			return nil
		}
		if ctx.Err() != nil {
			if next.err == nil {
				next.request.Reject(nil)
			}
			return nil
		}
		if next.err != nil {
			return next.err
		}
		clients.Go(func() {
			if err := c.serve(ctx, next.request); err != nil && ctx.Err() == nil {
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

package main

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/goverbs/verbs/cm"
)

// looping is the way of C's program: event by event, one goroutine a side.
type looping struct{ loop *cm.Loop }

func (w looping) serve(ctx context.Context, addr string, ready func()) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	l, err := w.loop.NewID()
	if err != nil {
		return err
	}
	defer l.Close()
	if err := errors.Join(l.Bind(at), l.Listen(0)); err != nil {
		return err
	}
	ready()
	for {
		ev, err := w.loop.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		switch ev.Type {
		case cm.ConnectRequest:
			ev.Accept(options) // fails if the peer has gone before we heard that it was there
		case cm.Disconnected:
			ev.Endpoint.Close()
		}
	}
}

func (w looping) dial(addr string, n, p int, rest time.Duration) (took []time.Duration, err error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	begun := 0
	begin := func() error {
		if begun == n {
			return nil
		}
		begun++
		now := time.Now()
		id, err := w.loop.NewID()
		if err != nil {
			return err
		}
		id.Tag = now
		return id.ResolveAddr(netip.AddrPort{}, to, 5*time.Second)
	}
	for range p {
		if err := begin(); err != nil {
			return nil, err
		}
	}
	for len(took) < n {
		ev, err := w.loop.Next(context.Background())
		if err == nil {
			err = ev.Err()
		}
		if err != nil {
			return nil, err
		}
		switch ev.Type {
		case cm.AddrResolved:
			err = ev.ID.ResolveRoute(5 * time.Second)
		case cm.RouteResolved:
			_, err = ev.Connect(options)
		case cm.Established:
			took = append(took, time.Since(ev.ID.Tag.(time.Time)))
			if err = ev.Endpoint.Close(); err != nil {
				break
			}
			if rest > 0 {
				time.Sleep(rest)
			}
			err = begin()
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

package main

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
)

// loopConnector makes connections as C's program does: event by event, one goroutine per side.
type loopConnector struct{ loop *cm.Loop }

func (l loopConnector) serve(ctx context.Context, addr string, ready func(), torn *teardownNotifier) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	id, err := l.loop.NewID()
	if err != nil {
		return err
	}
	defer id.Close()
	if err := errors.Join(id.Bind(at), id.Listen(0)); err != nil {
		return err
	}
	ready()
	for {
		ev, err := l.loop.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		switch ev.Type {
		case cm.Established:
			continue
		case cm.ConnectRequest:
			if _, err := l.loop.Accept(ev, options); err == nil {
				continue
			} // the peer has gone before the connection was established
		default:
			if err := ev.Endpoint.Close(); err != nil {
				return err
			}
		}
		if err := torn.notify(); err != nil {
			return err
		}
	}
}

func (l loopConnector) dial(w work) (took []time.Duration, err error) {
	to, err := netip.ParseAddrPort(w.addr)
	if err != nil {
		return nil, err
	}
	begin := func(start time.Time) error {
		id, err := l.loop.NewID()
		if err != nil {
			return err
		}
		id.Tag = start
		return id.ResolveAddr(netip.AddrPort{}, to, 5*time.Second)
	}
	begun := min(w.p, w.n)
	for range begun {
		if err := begin(time.Now()); err != nil {
			return nil, err
		}
	}
	for len(took) < w.n {
		ev, err := l.loop.Next(context.Background())
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
			_, err = l.loop.Connect(ev, options)
			if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
				err = begin(ev.ID.Tag.(time.Time)) // as in c/cm.h
			}
		case cm.Established:
			took = append(took, time.Since(ev.ID.Tag.(time.Time)))
			if err = errors.Join(ev.Endpoint.Close(), w.next()); err == nil && begun < w.n {
				begun++
				err = begin(time.Now())
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs/cm"
)

// byHandListener takes requests by an ID of its own. Connections share its
// channel, so it is closed after them.
type byHandListener struct {
	ch   *cm.Channel
	id   *cm.ID
	addr cm.Addr
}

func listenByHand(addr string) (_ pingListener, err error) {
	local, err := resolveByHand(addr)
	if err != nil {
		return nil, err
	}
	l := new(byHandListener)
	if l.ch, err = cm.NewChannel(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.id, err = l.ch.NewID(); err != nil {
		return nil, err
	}
	if err := l.id.Bind(local); err != nil {
		return nil, fmt.Errorf("listen on %v: %w", local, err)
	}
	if err := l.id.Listen(128); err != nil {
		return nil, fmt.Errorf("listen on %v: %w", local, err)
	}
	route, err := l.id.Route()
	l.addr = cm.Addr{AddrPort: route.Local}
	return l, err
}

func (l *byHandListener) Addr() cm.Addr { return l.addr }

func (l *byHandListener) next(ctx context.Context) (pingRequest, error) {
	e, err := awaitByHand(ctx, l.id, cm.ConnectRequest)
	return byHandRequest{e.NewID}, err
}

func (l *byHandListener) Close() error {
	var err error
	if l.id != nil {
		err = l.id.Close()
	}
	return errors.Join(err, l.ch.Close())
}

type byHandRequest struct{ id *cm.ID }

func (r byHandRequest) accept(ctx context.Context, p *pinger) error {
	h, err := newByHand(r.id, p, func() error { return nil })
	if err != nil {
		return err
	}
	if err := h.accept(ctx); err != nil {
		h.Close()
		return fmt.Errorf("accept from %v: %w", h.RemoteAddr(), err)
	}
	h.watch()
	return nil
}

func (h *byHand) accept(ctx context.Context) error {
	if !h.iWARP() {
		if err := h.activate(); err != nil {
			return err
		}
	}
	if err := h.id.Accept(h.param()); err != nil {
		return err
	}
	_, err := awaitByHand(ctx, h.id, cm.Established)
	return err
}

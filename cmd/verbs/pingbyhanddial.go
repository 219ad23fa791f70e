package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// dialByHand connects p.
func dialByHand(ctx context.Context, p *pinger, source netip.AddrPort, addr string) error {
	dst, err := resolveByHand(addr)
	if err != nil {
		return err
	}
	ch, err := cm.NewChannel()
	if err != nil {
		return err
	}
	id, err := ch.NewID()
	if err != nil {
		ch.Close()
		return err
	}
	if err := routeByHand(ctx, id, source, dst); err != nil {
		id.Close()
		ch.Close()
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	h, err := newByHand(id, p, ch.Close)
	if err != nil {
		return err
	}
	if err := h.connect(ctx); err != nil {
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	h.watch()
	return nil
}

func routeByHand(ctx context.Context, id *cm.ID, source, dst netip.AddrPort) error {
	const timeout = 2 * time.Second // rping's
	if err := id.ResolveAddr(source, dst, timeout); err != nil {
		return err
	}
	if _, err := awaitByHand(ctx, id, cm.AddrResolved); err != nil {
		return err
	}
	if err := id.ResolveRoute(timeout); err != nil {
		return err
	}
	_, err := awaitByHand(ctx, id, cm.RouteResolved)
	return err
}

// connect does the handshake. siw's kernel side waits for the peer without a
// context: if ctx ends first, all is closed when the kernel comes back.
func (h *byHand) connect(ctx context.Context) error {
	shaken := make(chan error, 1)
	go func() { shaken <- h.handshake(ctx) }()
	select {
	case err := <-shaken:
		if err != nil {
			h.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			<-shaken
			h.Close()
		}()
		return context.Cause(ctx)
	}
}

func (h *byHand) handshake(ctx context.Context) error {
	if err := h.id.Connect(h.param()); err != nil {
		return err
	}
	e, err := awaitByHand(ctx, h.id, cm.ConnectResponse, cm.Established)
	if err != nil {
		return err
	}
	if e.Type == cm.Established { // by iWARP, whose QP is in RTS
		h.qp.HoldSends(time.Now().Add(cm.Settle))
		return nil
	}
	if err := h.activate(); err != nil {
		return err
	}
	return h.id.Establish()
}

// awaitByHand waits for an event of one of the types.
func awaitByHand(ctx context.Context, id *cm.ID, want ...cm.EventType) (cm.Event, error) {
	for {
		e, err := id.Next(ctx)
		switch {
		case err != nil:
			return e, err
		case slices.Contains(want, e.Type):
			return e, nil
		case e.Type == cm.Rejected:
			return e, &cm.RejectedError{Reason: e.Status, PrivateData: e.PrivateData}
		case e.Type == cm.Disconnected:
			return e, verbs.ErrDisconnected
		case e.Type == cm.DeviceRemoval:
			return e, verbs.ErrDeviceRemoved
		case e.Status != 0:
			return e, fmt.Errorf("%v, status %d", e.Type, e.Status)
		}
	}
}

// resolveByHand looks up host:port; no host is all of IPv4.
func resolveByHand(addr string) (netip.AddrPort, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ap := a.AddrPort()
	if !ap.Addr().IsValid() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), ap.Port()), nil
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

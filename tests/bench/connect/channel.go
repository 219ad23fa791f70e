package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

// resolveTimeout is for the address, and for the route.
const resolveTimeout = 5 * time.Second

// maxTries is how often a round may meet a port that TCP still has a connection of.
const maxTries = 10

// onChannel returns a server and a dial with which one goroutine of each side makes all connections
// on a [cm.Channel], as the C program does.
func onChannel() (serve func(addr string) error, dial func(addr string, n, p int) error) {
	ctx := context.Background()
	open := func(addr string) (*cm.Channel, netip.AddrPort, error) {
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, to, err
		}
		ch, err := cm.DefaultTransport().NewChannel()
		return ch, to, err
	}
	serve = func(addr string) error {
		ch, at, err := open(addr)
		if err != nil {
			return err
		}
		l, err := ch.NewID(cm.PortSpaceTCP)
		if err == nil {
			err = l.Bind(at)
		}
		if err == nil {
			err = l.Listen(0)
		}
		if err != nil {
			return err
		}
		self.Ready()
		for {
			ev, err := ch.Next(ctx)
			switch {
			case err != nil:
				return err
			case ev.Type == cm.ConnectRequest:
				ch.Accept(ev, options) // fails if the peer has gone
			case ev.Type != cm.Established && ev.Endpoint != nil:
				if err := ev.Endpoint.Close(); err != nil {
					return err
				}
			}
		}
	}
	var ch *cm.Channel
	dial = func(addr string, n, p int) (err error) {
		to, err := netip.ParseAddrPort(addr)
		if ch == nil && err == nil {
			ch, to, err = open(addr)
		}
		begun, tries := 0, 0
		begin := func() {
			if begun++; err != nil || begun > n {
				return
			}
			var id *cm.ID
			if id, err = ch.NewID(cm.PortSpaceTCP); err == nil {
				err = id.ResolveAddr(netip.AddrPort{}, to, resolveTimeout)
			}
		}
		for range p {
			begin()
		}
		for up := 0; up < n && err == nil; {
			var ev cm.Event
			if ev, err = ch.Next(ctx); err != nil {
				break
			}
			switch ev.Type {
			case cm.AddrResolved:
				err = ev.ID.ResolveRoute(resolveTimeout)
			case cm.RouteResolved:
				_, err = ch.Connect(ev, options)
				if tries < maxTries && (errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
					tries++ // see port_taken in c/cm.h
					begun, err = begun-1, nil
					begin()
				}
			case cm.Established:
				up++
				if err = ev.Endpoint.Close(); err == nil {
					begin()
				}
			default:
				err = fmt.Errorf("%v: %w", ev.Type, ev.Err())
			}
		}
		return err
	}
	return serve, dial
}

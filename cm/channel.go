package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// Channel is an event channel of librdmacm (rdma_create_event_channel(3)): the program makes IDs on
// it and takes the events of all of them in order. Several goroutines may use a channel and its
// IDs.
type Channel struct {
	m         *manager
	events    *queue
	transport *Transport // owns the devices of the channel's endpoints
}

// NewChannel opens a channel for endpoints of the transport. The caller must close it last.
func (t *Transport) NewChannel() (*Channel, error) {
	m, err := openManager(t.node())
	if err != nil {
		return nil, err
	}
	c := &Channel{m: m, events: newQueue(m), transport: t}
	c.events.poll, c.events.users = host.NewSet(), 1
	m.channel = c
	go m.dispatch()
	return c, nil
}

// NewID makes an ID in a port space; zero is PortSpaceTCP.
func (c *Channel) NewID(space PortSpace) (*ID, error) {
	return c.m.addID(cmp.Or(space, PortSpaceTCP), nil).create()
}

// Close closes the channel, destroys its IDs and ends their endpoints. Calls of Next fail with
// [verbs.ErrClosed].
func (c *Channel) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	c.transport.leaving.endAll(func(l *leave) bool { return l.id.m == c.m })
	c.m.close()
	c.events.poll.Close()
	return nil
}

// FD returns a descriptor that is readable, for poll(2) and epoll(7), while TryNext would return
// an event. It is for waiting only, until Close; later FD returns -1.
func (c *Channel) FD() int { return c.events.poll.FD() }

// Next waits for the next event (rdma_get_cm_event(3)). An endpoint of the event's ID has already
// handled it: a ConnectResponse has been answered and is returned as Established, and at
// Disconnected, and at Rejected after Established, the endpoint has ended. Established always comes
// before Disconnected.
func (c *Channel) Next(ctx context.Context) (Event, error) {
	e, err := c.events.next(ctx, time.Time{})
	if err == nil {
		e.process(c)
	}
	return e, fail("wait for event", "", err)
}

// TryNext is Next without waiting: ok is false if there is no event.
func (c *Channel) TryNext() (e Event, ok bool, err error) {
	for {
		if e, ok, err = c.events.pop(); ok {
			e.process(c)
		}
		if ok || err != nil {
			return e, ok, fail("take event", "", err)
		}
		// The kernel may have an event that dispatch has not read yet.
		if err = c.m.readEvent(0); err == syscall.EAGAIN {
			return Event{}, false, nil
		}
		if err != nil {
			return Event{}, false, fail("take event", "", err)
		}
	}
}

// Connect makes an endpoint for the ID of a RouteResolved event and requests a connection.
// Established, or an event of failure, follows. On iWARP it waits for TCP's handshake. A failed
// Connect closes the ID.
func (c *Channel) Connect(e Event, opt Options) (*Endpoint, error) {
	if err := c.check(&e, RouteResolved); err != nil {
		return nil, fail("connect ID", "", err)
	}
	return c.startEndpoint(e.ID, nil, "connect to", &opt, (*Endpoint).connect)
}

// Accept makes an endpoint that answers a ConnectRequest event. Established, or an event of
// failure, follows, but no event for datagrams. A failed Accept rejects the request.
func (c *Channel) Accept(e Event, opt Options) (*Endpoint, error) {
	if err := c.check(&e, ConnectRequest); err != nil {
		return nil, fail("accept on ID", "", err)
	}
	return c.startEndpoint(e.NewID, &e, "accept from", &opt, (*Endpoint).accept)
}

// check refuses events of another channel or of another type.
func (c *Channel) check(e *Event, want EventType) error {
	if e.Type != want || e.ID == nil || e.ID.m != c.m {
		return fmt.Errorf("event %q cannot be used here, or belongs to another channel: %w", e.Type, syscall.EINVAL)
	}
	return nil
}

// startEndpoint makes the ID's endpoint and calls start with it. If that fails it closes both.
func (c *Channel) startEndpoint(id *ID, request *Event, op string, opt *Options, start func(*Endpoint) error) (*Endpoint, error) {
	route, err := id.Route()
	if err != nil {
		return nil, errors.Join(fail(op, "", err), id.Close())
	}
	ep, err := newEndpoint(id, route, request, opt, newConnLogger(opt.Logger), c.transport)
	if err == nil {
		id.endpoint.Store(ep)
		if err = start(ep); err != nil {
			ep.discard()
		}
	}
	if err != nil {
		return nil, fail(op, route.Remote.String(), err)
	}
	return ep, nil
}

// process makes the endpoint of the event's ID, if there is one, handle the event.
func (e *Event) process(c *Channel) {
	ep := e.ID.endpoint.Load()
	if ep == nil {
		return
	}
	if e.Type == Disconnected && !ep.iwarp && ep.life.begun.CompareAndSwap(false, true) {
		// Only a peer that is up disconnects: its confirmation is late or lost, see
		// awaitEstablished. The program gets both events.
		c.events.unpop(*e)
		*e = Event{Type: Established, ID: e.ID}
	}
	e.Endpoint = ep
	var err error
	switch up := ep.life.up.Load(); {
	case e.Type == ConnectResponse || e.Type == Established:
		ep.life.begun.Store(true)
		err = ep.handleEstablished(e)
		e.Type = Established
	case e.Type == Disconnected || e.Type == DeviceRemoval || e.Type == Rejected && up:
		ep.end(e.ended(), true, true)
	default:
		ep.logStep(slog.LevelDebug, e.Type.String(), e.Err())
	}
	if err != nil {
		ep.logStep(slog.LevelDebug, "connection failed", err)
		e.Type, e.Status = ConnectError, -int(syscall.EIO)
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			e.Status = -int(errno)
		}
	}
}

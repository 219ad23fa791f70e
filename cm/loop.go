package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/epoll"
	"github.com/goverbs/verbs/internal/event"
)

// Loop is a [Channel] from which the program reads the events of all IDs in order
// (rdma_get_cm_event(3)), so that one goroutine can make and end many connections, as
// programs on librdmacm do. A program that has an event loop of its own waits until
// [Loop.FD] is readable and calls [Loop.TryNext].
//
//	for {
//		ev, err := loop.Next(ctx)
//		...
//		switch ev.Type {
//		case cm.AddrResolved: // of an ID with ResolveAddr
//			err = ev.ID.ResolveRoute(time.Second)
//		case cm.RouteResolved:
//			_, err = loop.Connect(ev, opt)
//		case cm.ConnectRequest: // of an ID with Listen
//			_, err = loop.Accept(ev, opt)
//		case cm.Established:
//			use(ev.Endpoint)
//		case cm.Disconnected:
//			ev.Endpoint.Close()
//		}
//	}
//
// Several goroutines may use a loop's IDs, and may call Next and [ID.Join] at the same
// time. [ID.Next] fails.
type Loop struct {
	*Channel
	// Transport owns the devices of the loop's endpoints; nil is [DefaultTransport]. It
	// must be set before the first endpoint is made, and must use the same rdma_cm, see
	// [Transport.NewLoop].
	Transport *Transport

	group   event.Group
	changed event.Cond // there is an event, or an ID has ended

	mu     sync.Mutex
	events []Event    // from the kernel, for Next
	taken  int        // how many of events Next has returned
	poll   *epoll.Set // has the channel's file; awake while there are events
	fdUsed bool       // FD has been called
}

// NewLoop opens a loop on the rdma_cm of [DefaultTransport]. The caller must close it after its
// IDs.
func NewLoop() (*Loop, error) { return newLoop(defaultTransport.node()) }

// NewLoop opens a loop on the rdma_cm that the transport uses, whose Transport is t. The caller
// must close it after its IDs.
func (t *Transport) NewLoop() (*Loop, error) {
	l, err := newLoop(t.node())
	if err == nil {
		l.Transport = t
	}
	return l, err
}

func newLoop(node string) (*Loop, error) {
	c, err := openChannel(node)
	if err != nil {
		return nil, err
	}
	l := &Loop{Channel: c, poll: epoll.New()}
	l.group.Init(loopSource{l})
	l.changed.Init(&l.group)
	c.loop = l
	if err := l.poll.Add(c.file.FD(), 0); err != nil {
		c.Close()
		return nil, fail("open", node, err)
	}
	return l, nil
}

// Close closes the loop as [Channel.Close] does.
func (l *Loop) Close() error {
	if l == nil {
		return verbs.ErrClosed
	}
	return l.Channel.Close()
}

// FD returns a file descriptor that is readable, for poll(2) and epoll(7), while TryNext
// would return an event. With EPOLLET, call TryNext until it returns none. The descriptor
// is valid until Close, and is for waiting only; FD returns -1 after Close.
func (l *Loop) FD() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fdUsed = true
	l.updateFD()
	return l.poll.FD()
}

// updateFD makes the file of FD readable while there are events. The caller holds l.mu.
func (l *Loop) updateFD() {
	switch {
	case !l.fdUsed: // saves two system calls for each event
	case len(l.events) > 0:
		l.poll.Wake()
	default:
		l.poll.Clear()
	}
}

// replace calls f, which makes the channel's descriptor refer to another file.
func (l *Loop) replace(channel int, f func() error) error {
	l.poll.Remove(channel)
	return cmp.Or(f(), l.poll.Add(channel, 0))
}

// Next waits for the next event. If the event's ID has an endpoint, the endpoint has
// already handled the event: a [ConnectResponse] has been answered, and is returned as
// Established, and an endpoint that the peer has disconnected has ended. Established comes
// before Disconnected, also if the network has lost the peer's confirmation.
func (l *Loop) Next(ctx context.Context) (Event, error) {
	for {
		e, ok := l.pop()
		if !ok {
			if err := l.wait(ctx, func() bool { return len(l.events) > 0 }); err != nil {
				return Event{}, fail("wait for event", "", err)
			}
			continue
		}
		if e.process(l) {
			return e, nil
		}
	}
}

// TryNext is like [Loop.Next] but does not wait: ok is false if there is no event.
func (l *Loop) TryNext() (e Event, ok bool, err error) {
	for {
		for {
			e, ok := l.pop()
			if !ok {
				break
			}
			if e.process(l) {
				return e, true, nil
			}
		}
		err := l.file.Try(l.readFunc)
		if err == syscall.EAGAIN && !l.isPending() { // another goroutine may have read events
			return Event{}, false, nil
		}
		if err != nil && err != syscall.EAGAIN {
			return Event{}, false, fail("take event", "", err)
		}
	}
}

// wait reads events from the kernel until ready, which it calls with mu held, returns true.
func (l *Loop) wait(ctx context.Context, ready func() bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed.Wait(ctx, &l.mu, nil, ready)
}

// loopSource is the event.Source of a loop: its channel's file.
type loopSource struct{ l *Loop }

func (s loopSource) Arm() error { return nil }

func (s loopSource) Sleep(ctx context.Context, until time.Time) error {
	return s.l.file.Sleep(ctx, until, s.l.readFunc)
}

func (s loopSource) Wake() { s.l.file.Wake() }

func (l *Loop) push(e Event) {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.updateFD()
	l.mu.Unlock()
	l.changed.Signal()
}

func (l *Loop) pop() (e Event, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == len(l.events) {
		return e, false
	}
	e = l.events[l.taken]
	l.events[l.taken] = Event{}
	if l.taken++; l.taken == len(l.events) {
		l.events, l.taken = l.events[:0], 0
		l.updateFD()
	}
	return e, true
}

// unpop puts back an event that pop has returned.
func (l *Loop) unpop(e Event) {
	l.mu.Lock()
	l.events = slices.Insert(l.events, l.taken, e)
	l.updateFD()
	l.mu.Unlock()
	l.changed.Signal()
}

func (l *Loop) isPending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events) > 0
}

// remove removes an ID's events and returns them.
func (l *Loop) remove(id *ID) (events []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = slices.DeleteFunc(slices.Delete(l.events, 0, l.taken), func(e Event) bool {
		if e.ID == id {
			events = append(events, e)
		}
		return e.ID == id
	})
	l.taken = 0
	l.updateFD()
	return events
}

// Connect makes an endpoint for the ID of a [RouteResolved] event and requests a
// connection. [Established], or an event of failure, follows. On iWARP it waits for
// TCP's handshake. If it fails, the ID is closed.
func (l *Loop) Connect(e Event, opt Options) (*Endpoint, error) {
	if err := l.check(&e, RouteResolved); err != nil {
		return nil, fail("connect ID", "", err)
	}
	return l.startEndpoint(e.ID, "connect to", &opt, func(ep *Endpoint) error { return ep.connect(opt.connParam(ep)) })
}

// Accept makes an endpoint for the connection that a [ConnectRequest] event requests, and
// accepts it. [Established], or an event of failure, follows, but no event for datagrams.
// If it fails, the request is rejected.
func (l *Loop) Accept(e Event, opt Options) (*Endpoint, error) {
	if err := l.check(&e, ConnectRequest); err != nil {
		return nil, fail("accept on ID", "", err)
	}
	opt.limit(&e)
	return l.startEndpoint(e.NewID, "accept from", &opt, func(ep *Endpoint) error {
		ep.PrivateData = e.PrivateData
		return ep.accept(&opt)
	})
}

// check refuses events of another channel or of another type.
func (l *Loop) check(e *Event, want EventType) error {
	switch {
	case e.Type != want || e.ID == nil:
		return fmt.Errorf("event %q: %w", e.Type, syscall.EINVAL)
	case e.ID.ch() != l.Channel:
		return fmt.Errorf("ID of another channel: %w", syscall.EINVAL)
	}
	return nil
}

// startEndpoint makes the ID's endpoint and calls start with it. If that fails it closes both.
func (l *Loop) startEndpoint(id *ID, op string, opt *Options, start func(*Endpoint) error) (*Endpoint, error) {
	route, err := id.route()
	if err != nil {
		return nil, errors.Join(fail(op, "", err), id.Close())
	}
	if err := opt.check(); err != nil {
		return nil, errors.Join(fail(op, route.Remote.String(), err), id.Close())
	}
	ep, err := newEndpoint(id, route, opt, newConnLogger(opt.Logger), l.Transport.orDefault())
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

// process makes the endpoint of the event's ID, if there is one, handle the event. It
// returns false if the ID has been closed.
func (e *Event) process(l *Loop) bool {
	if e.ID.isEnded() {
		if e.NewID != nil {
			e.NewID.Close()
		}
		return false
	}
	ep := e.ID.endpoint.Load()
	if ep == nil {
		return true
	}
	if e.Type == Disconnected && !ep.up.Load() && !ep.iwarp {
		// The peer was up, or it could not disconnect: its confirmation is late or lost, see
		// awaitEstablished. The program gets both events.
		l.unpop(*e)
		*e = Event{Type: Established, ID: e.ID}
	}
	e.Endpoint = ep
	var err error
	switch e.Type {
	case ConnectResponse, Established:
		err = ep.handleEstablished(e)
		e.Type = Established
	case Disconnected, DeviceRemoval:
		ep.end(e.Err(), true)
	default:
		ep.log(slog.LevelDebug, e.Type.String(), e.Err())
	}
	if err != nil {
		ep.log(slog.LevelDebug, "connection failed", err)
		e.Type, e.Status = ConnectError, -int(syscall.EIO)
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			e.Status = -int(errno)
		}
	}
	return true
}

package cm

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Loop is a [Channel] whose events, whichever ID they are about, the program takes
// one by one in the order in which they happened (rdma_get_cm_event(3)): one
// goroutine has many connections come up and go, as in programs on librdmacm, and
// none is woken for another.
//
//	for {
//		ev, err := loop.Next(ctx)
//		...
//		switch ev.Type {
//		case cm.AddrResolved: // of an ID with ResolveAddr
//			err = ev.ID.ResolveRoute(time.Second)
//		case cm.RouteResolved:
//			_, err = ev.Connect(opt)
//		case cm.ConnectRequest: // of an ID with Listen
//			_, err = ev.Accept(opt)
//		case cm.Established:
//			use(ev.Endpoint)
//		case cm.Disconnected:
//			ev.Endpoint.Close()
//		}
//	}
//
// Several goroutines may use a loop's IDs, but only one at a time waits for
// events: Next and [ID.Join] wait for each other. [ID.Next] has none of them.
type Loop struct {
	*Channel
	waiter chan struct{} // has a token while somebody waits for events

	mu     sync.Mutex
	events []Event // that nobody has taken yet
	taken  int     // of these, the first

	// Of who waits.
	ctx       context.Context
	until     func() bool
	pending   func() bool // isPending
	ended     func() bool
	interrupt func() // while it is in the netpoller; guarded by mu
}

// NewLoop opens a loop. Its owner closes it after its IDs.
func NewLoop() (*Loop, error) {
	c, err := openChannel()
	if err != nil {
		return nil, err
	}
	l := &Loop{Channel: c, waiter: make(chan struct{}, 1)}
	l.pending = l.isPending
	l.ended = func() bool { return l.until() || l.ctx.Err() != nil }
	c.loop = l
	return l, nil
}

// Next waits for the next event. The endpoint that it is about, if there is one,
// has been told: [ConnectResponse] has been answered, and comes as Established, and
// one that the peer has disconnected has ended.
func (l *Loop) Next(ctx context.Context) (Event, error) {
	for {
		e, ok := l.pop()
		if !ok {
			if err := l.wait(ctx); err != nil {
				return Event{}, fail("wait for event", "", err)
			}
			continue
		}
		if e.ID.isEnded() { // closed since
			if e.NewID != nil {
				e.NewID.Close()
			}
			continue
		}
		e.tell()
		return e, nil
	}
}

// wait takes events from the kernel until there is one.
func (l *Loop) wait(ctx context.Context) error {
	select {
	case l.waiter <- struct{}{}:
		return l.waitInTurn(ctx, l.pending)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitInTurn takes events from the kernel, for whomever they are, until it is time.
// The caller has put the token into waiter, which it takes out.
func (l *Loop) waitInTurn(ctx context.Context, until func() bool) error {
	defer func() { <-l.waiter }()
	l.ctx, l.until = ctx, until
	for !until() {
		l.file.Lead(l.ended, l.taker)
		if until() {
			break
		}
		if err := l.waitLong(ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// waitLong waits for one event, or until wake is called.
func (l *Loop) waitLong(ctx context.Context, until func() bool) error {
	woken, interrupt := context.WithCancel(ctx)
	defer interrupt()
	l.setInterrupt(interrupt)
	defer l.setInterrupt(nil)
	if until() {
		return nil
	}
	err := l.file.Do(woken, l.taker)
	if woken.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

func (l *Loop) setInterrupt(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt = f
}

// wake has who waits look whether it is time.
func (l *Loop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interrupt != nil {
		l.interrupt()
	}
}

func (l *Loop) push(e Event) {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.mu.Unlock()
	l.wake() // it may be another goroutine's doing, see ID.Migrate
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
	}
	return e, true
}

func (l *Loop) isPending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events) > 0
}

// remove takes an ID's events out.
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
	return events
}

// Connect makes an endpoint for the ID of a [RouteResolved] event and asks its peer
// for a connection: [Established], or an event of failure, follows. On iWARP it
// waits for TCP's handshake. If it fails, the ID is closed.
func (e *Event) Connect(opt Options) (*Endpoint, error) {
	const op = "connect to"
	if e.Type != RouteResolved {
		return nil, fail(op, e.Type.String(), unix.EINVAL)
	}
	return e.ID.begin(op, nil, &opt, func(ep *Endpoint) error { return ep.connect(opt.connParam(ep)) })
}

// Accept makes an endpoint for the connection that a [ConnectRequest] event asks for
// and answers: [Established], or an event of failure, follows, but for datagrams
// nothing does. If it fails, the request is rejected.
func (e *Event) Accept(opt Options) (*Endpoint, error) {
	const op = "accept from"
	if e.Type != ConnectRequest {
		return nil, fail(op, e.Type.String(), unix.EINVAL)
	}
	opt.limit(e)
	return e.NewID.begin(op, e, &opt, func(ep *Endpoint) error {
		ep.PrivateData = e.PrivateData
		return ep.accept(&opt)
	})
}

// begin makes the ID's endpoint and calls ask for it. If that fails it closes them.
func (id *ID) begin(op string, request *Event, opt *Options, ask func(*Endpoint) error) (*Endpoint, error) {
	route, err := id.Route()
	if err != nil {
		return nil, errors.Join(fail(op, "", err), id.Close())
	}
	ep, err := newEndpoint(id, route, request, opt, func() {})
	if err == nil {
		id.endpoint.Store(ep)
		if err = ask(ep); err != nil {
			ep.Close()
		}
	}
	if err != nil {
		return nil, fail(op, route.Remote.String(), err)
	}
	return ep, nil
}

// tell tells the endpoint.
func (e *Event) tell() {
	ep := e.ID.endpoint.Load()
	if ep == nil {
		return
	}
	e.Endpoint = ep
	var err error
	switch e.Type {
	case ConnectResponse, Established:
		err = ep.answered(e)
		e.Type = Established
	case Disconnected, DeviceRemoval:
		ep.end(e.Err(), true)
	}
	if err != nil {
		e.Type, e.Status = ConnectError, -int(unix.EIO)
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			e.Status = -int(errno)
		}
	}
}

package cm

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/host"
)

// queue holds the events of one ID, of the IDs of a [Listener], or of all IDs of a [Channel] until
// they are taken. An ID has one queue from its beginning to its end.
type queue struct {
	m    *manager
	poll *host.Set // of a channel: readable while there are events; else nil

	mu      sync.Mutex
	users   int // the IDs, and the channel: the queue ends with the last of them
	events  []Event
	buf     *[1]Event          // first array of events, which seldom has more than one; nil with handler
	handler func(Event, error) // receives the events instead of next
	err     error              // why the queue has ended
	ready   chan struct{}      // has a token while there may be events; closed with the queue; nil with handler
}

func newQueue(m *manager) *queue {
	return &queue{m: m, buf: new([1]Event), ready: make(chan struct{}, 1)}
}

// push adds an event. It returns false if the event's ID has ended or its backlog is full.
func (q *queue) push(e Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || e.ID.ended {
		return false
	}
	e.ID.over = e.ID.over || e.Type.ends()
	if f := e.ID.established; f != nil && e.Type == Established {
		f()
	}
	if f := e.ID.onOver; f != nil {
		if e.ID.over {
			f()
		}
		return true
	}
	if f := q.handler; f != nil {
		q.mu.Unlock()
		defer q.mu.Lock()
		f(e, nil)
		return true
	}
	if e.Type == ConnectRequest && !e.ID.backlog.add() {
		q.warn(e.ID.backlog)
		return false
	}
	if len(q.events) == 0 {
		q.events = q.buf[:0]
	}
	q.events = append(q.events, e)
	q.update()
	return true
}

func (q *queue) unpop(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = slices.Insert(q.events, 0, e)
	q.update()
}

// update tells waiters whether there are events. The caller holds mu.
func (q *queue) update() {
	if len(q.events) > 0 {
		q.signal()
	}
	switch {
	case q.poll == nil:
	case len(q.events) > 0:
		q.poll.Wake()
	default:
		q.poll.Clear()
	}
}

// signal wakes one goroutine in next, which wakes the next one. The caller holds mu.
func (q *queue) signal() {
	if q.err != nil { // ready is closed
		return
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// wake makes one goroutine in next look again.
func (q *queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signal()
}

func (q *queue) pop() (e Event, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || len(q.events) == 0 {
		return Event{}, false, q.err
	}
	e, q.events[0] = q.events[0], Event{}
	q.events = q.events[1:]
	e.ID.backlog.remove(&e)
	q.update()
	return e, true, nil
}

// errLate ends a wait at its time.
var errLate = errors.New("too late")

// next waits for the next event and takes it. Several goroutines may wait; one of them gets each
// event. At the time until, unless that is zero, it fails with errLate; one goroutine at a time may
// set it.
func (q *queue) next(ctx context.Context, until time.Time) (Event, error) {
	for alarm := false; ; {
		if e, ok, err := q.pop(); ok || err != nil {
			return e, err
		}
		if err := q.m.renewalErr(); err != nil {
			q.wake() // the next waiter
			return Event{}, err
		}
		switch {
		case until.IsZero():
		case !time.Now().Before(until):
			return Event{}, errLate
		case !alarm:
			alarm = true
			q.m.alarms.set(q, until)
			defer q.m.alarms.clear(q)
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return Event{}, host.Ended(ctx)
		}
	}
}

// await waits for an event of one of the types. It returns the error of another event that
// means failure.
func (q *queue) await(ctx context.Context, want ...EventType) (Event, error) {
	return q.awaitUntil(ctx, time.Time{}, want...)
}

// awaitUntil is await, and fails with errLate at the time until.
func (q *queue) awaitUntil(ctx context.Context, until time.Time, want ...EventType) (Event, error) {
	for {
		e, err := q.next(ctx, until)
		switch {
		case err != nil:
			return e, err
		case slices.Contains(want, e.Type):
			return e, nil
		}
		if err := e.Err(); err != nil {
			return e, err
		}
	}
}

// handle registers f to be called with each event, in order, and once with an error when the queue
// ends. For the events that wait already handle calls f itself; for later ones the goroutine that
// reads them from the kernel does, so f must not block.
func (q *queue) handle(f func(Event, error)) {
	for {
		e, ok, err := q.pop()
		if !ok && err == nil {
			q.mu.Lock()
			if len(q.events) == 0 && q.err == nil {
				q.handler, q.events, q.buf, q.ready = f, nil, nil, nil
				q.mu.Unlock()
				return
			}
			q.mu.Unlock()
			continue
		}
		f(e, err)
		if err != nil {
			return
		}
	}
}

// whenOver registers f to be called, with mu held, when the connection of an ID is over at both sides
// or the ID ends, and drops the ID's events. It returns false if the ID is over already.
func (q *queue) whenOver(id *ID, f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || id.ended || id.over {
		return false
	}
	q.drop(id)
	id.onOver = f
	return true
}

// drop drops the events of an ID. The caller holds mu, and must close the returned new IDs without
// it.
func (q *queue) drop(id *ID) (dropped []*ID) {
	q.events = slices.DeleteFunc(q.events, func(e Event) bool {
		if e.ID != id {
			return false
		}
		id.backlog.remove(&e)
		if e.NewID != nil {
			dropped = append(dropped, e.NewID)
		}
		return true
	})
	q.update()
	return dropped
}

func (q *queue) end(id *ID, why error) {
	q.mu.Lock()
	if id.ended {
		q.mu.Unlock()
		return
	}
	id.ended = true
	dropped := q.drop(id)
	if id.onOver != nil {
		id.onOver()
	}
	q.users--
	last := q.users == 0
	q.mu.Unlock()
	if last {
		q.close(why)
	}
	for _, id := range dropped {
		id.Close() // which rejects the connection
	}
}

// close ends an empty queue.
func (q *queue) close(why error) {
	q.mu.Lock()
	if q.err != nil {
		q.mu.Unlock()
		return
	}
	q.err = why
	handler := q.handler
	if q.ready != nil {
		close(q.ready)
	}
	q.mu.Unlock()
	if handler != nil {
		handler(Event{}, why)
	}
}

// backlog limits the connection requests of a listener that wait in its queue, and counts them. The
// queue's mu guards it.
type backlog struct {
	most, waiting        int
	requests, turnedAway uint64
	log                  *slog.Logger
	local                string // the listener's address, for log
	logged               uint64 // of turnedAway
	warning              bool   // a goroutine logs
}

// add counts a request. It returns false if the request is one too many.
func (b *backlog) add() bool {
	if b == nil { // of an ID that does not listen
		return true
	}
	b.requests++
	if b.waiting >= b.most {
		b.turnedAway++
		return false
	}
	b.waiting++
	return true
}

// warn logs the requests that have been turned away. The caller holds mu, with which the logger's
// handler must not run, so a goroutine logs. There is one at most, whatever peers send: while a
// handler is busy, requests are counted, and its next line has their number.
func (q *queue) warn(b *backlog) {
	if b.log == nil || b.warning {
		return
	}
	b.warning = true
	go func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		for b.logged < b.turnedAway {
			n, local, most := b.turnedAway-b.logged, b.local, b.most
			b.logged = b.turnedAway
			q.mu.Unlock()
			b.log.Warn("connection request turned away: backlog is full", "local", local, "backlog", most, "requests", n)
			q.mu.Lock()
		}
		b.warning = false
	}()
}

// remove counts an event that has left the queue.
func (b *backlog) remove(e *Event) {
	if b != nil && e.Type == ConnectRequest {
		b.waiting--
	}
}

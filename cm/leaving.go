package cm

import (
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/fifo"
)

// leaving keeps the IDs of connections that this side has ended, until their peers know: the
// connection manager repeats its request (DREQ) only while the ID exists. Everything else of the
// connection is released, as a TCP socket in FIN-WAIT-1 outlives its descriptor.
//
//	add ──► asked ──── answer, last repetition or askLimit ────► destroyed
//	  └──► waiting ──► asked
//	          └─────── waitLimit ──────────────────────────────► destroyed, which sends one request
//
// At most maxAsked peers are asked at a time. Linux 7.3 lets 128 requests of a port wait for
// answers, including dials, and queues all others (ib_post_send_mad): a thousand connections to a
// dead machine must not hold up every dial. Nor does a burst fill the peers' receive queues. An ID
// that waits in vain loses only the repetitions: destroying it sends a request past that queue
// (cm_issue_dreq), also when the process ends.
type leaving struct {
	mu      sync.Mutex
	closed  bool
	ids     map[*ID]*leave
	asked   int
	waiting fifo.Queue[*leave]
	empty   chan struct{} // closed when there are no IDs; nil unless close waits
}

// leave is an ID that is leaving.
type leave struct {
	id    *ID
	port  uint16 // the local one; 0 if it is the listener's
	state leaveState
	timer *time.Timer // destroys it
}

type leaveState uint8

const (
	leaveWaiting leaveState = iota // while maxAsked others are asked
	leaveAsked                     // its peer has been asked to end the connection, by DISCONNECT
	leaveOver                      // both sides have ended the connection: the ID is being destroyed, which may take a minute
	leaveGone                      // it is not in ids any more
)

const (
	maxLeaving = 4096 // bounds the kernel's memory, and the local ports in use (of 28,000)
	maxAsked   = 64
	askLimit   = 70 * time.Second // the kernel asks 16 times, 4 s apart
	waitLimit  = time.Second
	// answerTime is how long the end of a Transport waits for answers: a network takes a
	// millisecond, a peer's program that is busy some more.
	answerTime = time.Second
)

// add takes over an ID whose connection is up. asked tells that the caller has run DISCONNECT
// already. add returns false if the caller must close the ID: the connection has ended at both
// sides, there are too many, or the kernel refuses to ask the peer, which the caller's Close then
// reports. An ID that [ID.Notify] established is taken even if its connection has ended: destroying
// it may take a minute, for which the caller must not wait.
func (l *leaving) add(id *ID, port uint16, asked bool) bool {
	l.mu.Lock()
	if l.closed || len(l.ids) >= maxLeaving {
		l.mu.Unlock()
		return false
	}
	// Events come from the dispatcher, which must not wait for system calls.
	over := !id.events.whenOver(id, func() { go l.end(id) })
	if over && !id.notified.Load() {
		l.mu.Unlock()
		return false
	}
	if l.ids == nil {
		l.ids = map[*ID]*leave{}
	}
	id.leaving.Store(true)
	s := &leave{id: id, port: port}
	l.ids[id] = s
	ask := !over && !asked && l.asked < maxAsked
	end := func() { l.end(id) }
	switch {
	case over:
		s.state, s.timer = leaveOver, time.AfterFunc(0, end)
	case asked || ask:
		l.asked++
		s.state, s.timer = leaveAsked, time.AfterFunc(askLimit, end)
	default:
		l.waiting.Push(s)
		s.timer = time.AfterFunc(waitLimit, end)
	}
	l.mu.Unlock()
	if ask && id.Disconnect() != nil {
		id.leaving.Store(false)
		l.remove(id)
		return false
	}
	return true
}

// end destroys an ID, and asks the peer of another one instead. If the kernel refuses, it is tried
// again later.
func (l *leaving) end(id *ID) {
	err := id.Close() // before the ID leaves the set: Transport.Close returns after it
	l.mu.Lock()
	s := l.ids[id]
	again := s != nil && err != nil && !l.closed
	if again {
		s.timer.Reset(askLimit)
	}
	l.mu.Unlock()
	if !again {
		l.remove(id)
	}
}

// remove forgets an ID, and asks the peer of another one instead.
func (l *leaving) remove(id *ID) {
	l.mu.Lock()
	s := l.ids[id]
	if s == nil {
		l.mu.Unlock()
		return
	}
	delete(l.ids, id)
	s.timer.Stop()
	if s.state == leaveAsked {
		l.asked--
	}
	s.state = leaveGone
	var next *leave
	for next == nil && l.asked < maxAsked && l.waiting.Len() > 0 {
		if w := l.waiting.Pop(); w.state == leaveWaiting {
			next = w
			next.state = leaveAsked
			next.timer.Reset(askLimit)
			l.asked++
		}
	}
	if len(l.ids) == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
	l.mu.Unlock()
	if next != nil && next.id.Disconnect() != nil {
		l.end(next.id)
	}
}

// endPort destroys the IDs with a local port, which the program wants to use again; 0 is none.
func (l *leaving) endPort(port uint16) {
	if port != 0 {
		l.endAll(func(s *leave) bool { return s.port == port })
	}
}

// endAll destroys the IDs that match. It does not wait for IDs that are being destroyed already.
func (l *leaving) endAll(match func(*leave) bool) {
	var ids []*ID
	l.mu.Lock()
	for _, state := range []leaveState{leaveWaiting, leaveAsked} { // in this order no waiting ID takes an asked one's place
		for id, s := range l.ids {
			if s.state == state && match(s) {
				ids = append(ids, id)
			}
		}
	}
	l.mu.Unlock()
	for _, id := range ids {
		l.end(id)
	}
}

// close waits a short time for answers and destroys the IDs that are left. add refuses all from now
// on.
func (l *leaving) close() {
	l.mu.Lock()
	l.closed = true
	if l.empty == nil && len(l.ids) > 0 {
		l.empty = make(chan struct{})
	}
	empty := l.empty
	l.mu.Unlock()
	if empty == nil {
		return
	}
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case <-empty:
	case <-late.C:
	}
	l.endAll(func(*leave) bool { return true })
}

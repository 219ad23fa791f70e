//go:build linux

package erdma

import "sync"

// end is an end of a TCP connection, as MODIFY_QP names it: the addresses and ports of both sides, and what
// the kernel's connection manager has told the adapter of its state.
type end struct {
	own, peer           [6]byte // address and port
	sendNext, recvNext  uint32  // numbers of the next byte to send and to receive
	cookie, peersCookie uint32
}

// Links are the adapters' QPs that wait for their peers. One has joined when the kernel has accepted a
// connection, the other when the answer has reached its kernel.
type Links struct {
	mu      sync.Mutex
	waiting map[[12]byte]*qp // by own and peer of their ends
}

// NewLinks makes the links of a network.
func NewLinks() *Links { return &Links{waiting: map[[12]byte]*qp{}} }

func (e *end) name() [12]byte { return [12]byte(append(e.own[:], e.peer[:]...)) }

// join returns the QP at the other end, or nil if that has yet to join. It reports false if another QP has
// the same end.
func (l *Links) join(q *qp) (peer *qp, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	other := end{own: q.end.peer, peer: q.end.own}
	if p := l.waiting[other.name()]; p != nil && p != q {
		delete(l.waiting, other.name())
		return p, true
	}
	if l.waiting[q.end.name()] != nil {
		return nil, false
	}
	l.waiting[q.end.name()] = q
	return nil, true
}

// leave makes a QP wait no more.
func (l *Links) leave(q *qp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[q.end.name()] == q {
		delete(l.waiting, q.end.name())
	}
}

// fits reports whether two ends agree: each has been told the other's cookie, and each sends next what
// the other receives next.
func (e *end) fits(o *end) bool {
	return e.peersCookie == o.cookie && o.peersCookie == e.cookie && e.sendNext == o.recvNext && o.sendNext == e.recvNext
}

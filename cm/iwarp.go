package cm

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// iWARP differs from InfiniBand and RoCE in how a connection comes up: the
// kernel, which talks MPA with the peer, moves the QP to RTS by itself, so the
// active side hears Established at once and nothing is to be confirmed.
// There are no retries and no RNR: a message that finds no receive ends the
// connection, and disconnecting loses what is on its way. After the handshake
// the first message must come from the side that dialed (RFC 5044, section
// 7.1.1). Ports are TCP's: one that a TCP socket listens on cannot be had
// (EADDRINUSE), and peers that connect by TCP and say nothing, or something
// else, are the kernel's to deal with: they never become a Request.

// connectIWARP connects and waits for the answer. During ID.Connect siw's kernel
// side waits for TCP's handshake, without a context: up to two minutes if nobody
// answers; and while MPA's is under way, up to 10 s, it does not let the ID go.
// If ctx ends first, the handshake is left to end in the background, the
// endpoint is closed then, and abandoned is true. (The siw of a listener whose
// peers break off handshakes may release itself once too often, and break, so
// they are not broken off.)
func connectIWARP(ctx context.Context, e *Endpoint, p ConnParam) (ev Event, abandoned bool, err error) {
	q, err := enterQueue(ctx, e.route.Remote)
	if err != nil {
		return ev, false, err
	}
	if ctx.Done() == nil { // nothing to give up for
		if err = e.id.connectAside(p); err == nil {
			ev, err = e.id.await(ctx, Established)
		}
		q.leave()
		return ev, false, err
	}
	connected := make(chan error, 1)
	background(func() { connected <- e.id.connectAside(p) })
	select {
	case err = <-connected:
		if err == nil {
			ev, err = e.id.await(ctx, Established)
		}
		if err == nil || ctx.Err() == nil {
			q.leave()
			return ev, false, err
		}
		close(connected)
	case <-ctx.Done():
	}
	background(func() {
		if <-connected == nil {
			e.id.await(context.Background(), Established)
		}
		e.discard()
		q.leave()
	})
	return ev, true, ctx.Err()
}

// settle is how long an accepted endpoint waits for the peer's first message before it
// sends one itself, which it should not: a siw that dialed takes a message that comes
// together with the answer for a breach of MPA, and fails to connect (siw_recv_mpa_rr,
// [ErrMPA]). A dial can still fail so on a machine too busy to read the answer meanwhile.
const settle = 10 * time.Millisecond

// iwarpAtOnce is how many iWARP handshakes with one listener are under way at
// once. siw gives a handshake 10 s from its first byte: more of them than the
// listener gets through in that time would all fail.
const iwarpAtOnce = 32

// queues limit dials by iWARP for each listener, so that one that does not answer holds
// up no others.
var queues = struct {
	sync.Mutex
	m     map[netip.AddrPort]*queue
	spare *queue // of nobody
}{m: map[netip.AddrPort]*queue{}}

type queue struct {
	addr  netip.AddrPort
	slots chan struct{}
	users int
}

// enterQueue waits for a turn to dial an address, which leave ends.
func enterQueue(ctx context.Context, addr netip.AddrPort) (*queue, error) {
	q := queueTo(addr)
	select {
	case q.slots <- struct{}{}:
		return q, nil
	case <-ctx.Done():
		q.quit()
		return nil, ctx.Err()
	}
}

// queueTo is the queue of an address, with the caller in it until quit.
func queueTo(addr netip.AddrPort) *queue {
	queues.Lock()
	defer queues.Unlock()
	q := queues.m[addr]
	if q == nil {
		if q, queues.spare = queues.spare, nil; q == nil {
			q = &queue{slots: make(chan struct{}, iwarpAtOnce)}
		}
		q.addr = addr
		queues.m[addr] = q
	}
	q.users++
	return q
}

func (q *queue) leave() {
	<-q.slots
	q.quit()
}

func (q *queue) quit() {
	queues.Lock()
	defer queues.Unlock()
	if q.users--; q.users == 0 {
		delete(queues.m, q.addr)
		queues.spare = q
	}
}

package cm

import (
	"context"
	"net/netip"
	"time"
)

// iWARP differs from InfiniBand and RoCE in how a connection is established: the
// kernel does the MPA handshake with the peer and moves the QP to RTS itself, so
// the active side gets Established at once and has nothing to confirm.
// There are no retries and no RNR: a message that finds no receive ends the
// connection, and disconnecting loses messages in flight. After the handshake
// the first message must come from the side that dialed (RFC 5044, section
// 7.1.2): MPA puts frames into TCP's stream, and a dialing side that gets the
// reply and a frame in one piece may not know yet how to read the latter. With
// RFC 6581 the devices exchange an empty first message by themselves, but siw
// does not ask for that (peer_to_peer). Ports are TCP's: a port that a TCP
// socket listens on is in use (EADDRINUSE), and the kernel handles peers that
// connect by TCP and send nothing, or something other than MPA: they never
// become a Request.

// connectIWARP connects and waits for the answer. On siw, ID.Connect waits for TCP's handshake
// and cannot be cancelled: it takes up to two minutes if nothing answers, and until MPA's
// handshake is over, up to 10 s, the ID cannot be closed. If ctx ends first, abandoned is true:
// the handshake continues in the background, and the endpoint is closed at its end. It is not
// aborted because a listening siw may then release its listener once too often.
func connectIWARP(ctx context.Context, t *Transport, e *Endpoint) (_ Event, abandoned bool, _ error) {
	leave, err := t.acquirePeer(ctx, e.route.Remote)
	if err != nil {
		return Event{}, false, err
	}
	var ev Event
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer leave()
		if err = e.connect(); err == nil {
			ev, err = e.id.events.await(context.Background(), Established)
		}
	}()
	select {
	case <-done:
		return ev, false, err
	// Nobody waits for the result any more, but the kernel does: the endpoint lives until it has
	// one.
	case <-ctx.Done():
		go func() {
			<-done
			e.discard()
		}()
		return Event{}, true, ctx.Err()
	}
}

// settleDelay is how long an accepted endpoint waits for the peer's first message before it sends.
// The accepting side must not send first: a dialing siw treats a message that comes together
// with the answer as a violation of MPA and fails to connect (siw_recv_mpa_rr, [ErrMPA]). A
// dial can still fail so on a machine that is too busy to read the answer in that time.
const settleDelay = 50 * time.Millisecond

// peer limits the iWARP handshakes with one listener, so that a listener that does not answer
// delays no others. siw limits a handshake to 10 s from its first byte: all would fail if there
// were more than the listener can complete in that time.
type peer struct {
	tokens chan struct{} // holds a token for each handshake in progress
	users  int           // dials that wait or have a token
}

const maxIWARPHandshakes = 32

// acquirePeer waits for a token to dial an address. The function that it returns releases it.
func (t *Transport) acquirePeer(ctx context.Context, addr netip.AddrPort) (leave func(), err error) {
	t.mu.Lock()
	p := t.peers[addr]
	if p == nil {
		p = &peer{tokens: make(chan struct{}, maxIWARPHandshakes)}
		if t.peers == nil {
			t.peers = map[netip.AddrPort]*peer{}
		}
		t.peers[addr] = p
	}
	p.users++
	t.mu.Unlock()
	quit := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(t.peers, addr)
		}
	}
	select {
	case p.tokens <- struct{}{}:
		return func() { <-p.tokens; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, ctx.Err()
	}
}

package cm

import (
	"context"
	"net/netip"
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

// connectIWARP connects and waits for the answer. ID.Connect of siw waits for TCP's handshake
// and knows no context: it takes up to two minutes if nothing answers, and until MPA's
// handshake is over, up to 10 s, the ID cannot be closed. If ctx ends first, the handshake ends
// in the background, which closes the endpoint then, and abandoned is true. It is not broken
// off, as a siw that listens may then release itself once too often.
func connectIWARP(ctx context.Context, t *Transport, e *Endpoint, p ConnParam) (_ Event, abandoned bool, _ error) {
	leave, err := t.enterPeer(ctx, e.route.Remote)
	if err != nil {
		return Event{}, false, err
	}
	var ev Event
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer leave()
		if err = e.id.connectAside(p); err == nil {
			ev, err = e.id.await(context.Background(), Established)
		}
	}()
	select {
	case <-done:
		return ev, false, err
	case <-ctx.Done():
		go func() {
			<-done
			e.discard()
		}()
		return Event{}, true, ctx.Err()
	}
}

// settle is how long an accepted endpoint waits for the peer's first message before it
// sends one itself, which it should not: a siw that dialed takes a message that comes
// together with the answer for a breach of MPA, and fails to connect (siw_recv_mpa_rr,
// [ErrMPA]). A dial can still fail so on a machine too busy to read the answer meanwhile.
const settle = 10 * time.Millisecond

// peer limits handshakes by iWARP with one listener, so that one that does not answer holds up
// no others. siw gives a handshake 10 s from its first byte: if there were more of them than
// the listener gets through in that time, all would fail.
type peer struct {
	turns chan struct{} // holds a token for each handshake under way
	users int           // dials that wait or have a turn
}

const iwarpAtOnce = 32

// enterPeer waits for a turn to dial an address, which the function that it returns ends.
func (t *Transport) enterPeer(ctx context.Context, addr netip.AddrPort) (leave func(), err error) {
	t.mu.Lock()
	p := t.peers[addr]
	if p == nil {
		p = &peer{turns: make(chan struct{}, iwarpAtOnce)}
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
	case p.turns <- struct{}{}:
		return func() { <-p.turns; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, ctx.Err()
	}
}

package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/verbs/internal/host"
)

// iWARP establishes connections in another way than InfiniBand and RoCE: the kernel does the MPA
// handshake with the peer and moves the QP to RTS itself, so the active side gets Established at
// once and has nothing to confirm. There are no retries and no RNR: a message that finds no receive
// ends the connection, and disconnecting loses messages in flight.
//
// After the handshake the side that dialed must send the first message (RFC 5044, section 7.1.2):
// MPA puts frames into TCP's stream, and a dialing side that gets the reply and a frame in one
// piece may not know yet how to read the frame. With RFC 6581 the devices exchange an empty first
// message by themselves, but siw does not ask for one (peer_to_peer).
//
// Ports are TCP's: a port that a TCP socket listens on is in use (EADDRINUSE). Peers that connect
// by TCP and send nothing, or something other than MPA, never become a Request: the kernel handles
// them.

// connectIWARP connects and waits for the answer, until a time unless that is zero. On siw,
// ID.Connect waits for TCP's handshake and cannot be cancelled: it takes up to two minutes if
// nothing answers, and until MPA's handshake is over, up to 10 s, the ID cannot be closed. If ctx
// ends first, or it is late, abandoned is true: the handshake continues in the background, and the
// endpoint is closed at its end. It is not aborted because a listening siw may then release its
// listener once too often.
func connectIWARP(ctx context.Context, until time.Time, t *Transport, e *Endpoint) (_ Event, abandoned bool, _ error) {
	release, err := t.startHandshake(ctx, until, e.route.Remote)
	if err != nil {
		return Event{}, false, err
	}
	connected := make(chan struct{})
	go func() {
		growStack()
		defer close(connected)
		if err := e.connect(); err != nil {
			e.id.events.end(e.id, err)
		}
	}()
	ev, err := e.id.events.awaitUntil(ctx, until, Established)
	if err == nil || err != errLate && !errors.Is(err, ctx.Err()) {
		release()
		return ev, false, err
	}
	go func() { // the kernel still waits for the result, and the endpoint lives until then
		<-connected
		e.id.events.await(context.Background(), Established)
		release()
		e.discard()
	}()
	return Event{}, true, err
}

// settleDelay is how long an accepted endpoint waits for the peer's first message before it sends.
// The accepting side must not send first: a dialing siw treats a message that comes together
// with the answer as a violation of MPA and fails to connect (siw_recv_mpa_rr, [ErrMPA]). A
// dial can still fail so on a machine that is too busy to read the answer in that time.
const settleDelay = 50 * time.Millisecond

// handshakes limits the iWARP handshakes with one listener, so that a listener that does not answer
// delays no others. siw limits a handshake to 10 s from its first byte: all would fail if there
// were more than the listener can complete in that time.
type handshakes struct {
	tokens chan struct{} // holds a token for each handshake in progress
	users  int           // dials that wait or have a token
}

const maxIWARPHandshakes = 32

// startHandshake waits for a token to dial a listener, until a time unless that is zero. The function
// that it returns releases it.
func (t *Transport) startHandshake(ctx context.Context, until time.Time, listener netip.AddrPort) (done func(), err error) {
	t.mu.Lock()
	h := t.handshakes[listener]
	if h == nil {
		h = &handshakes{tokens: make(chan struct{}, maxIWARPHandshakes)}
		if t.handshakes == nil {
			t.handshakes = map[netip.AddrPort]*handshakes{}
		}
		t.handshakes[listener] = h
	}
	h.users++
	t.mu.Unlock()
	quit := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(t.handshakes, listener)
		}
	}
	done = func() { <-h.tokens; quit() }
	select {
	case h.tokens <- struct{}{}:
		return done, nil
	default:
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	select {
	case h.tokens <- struct{}{}:
		return done, nil
	case <-ctx.Done():
		quit()
		return nil, fmt.Errorf("wait behind %d handshakes with the listener: %w", maxIWARPHandshakes, host.Ended(ctx))
	}
}

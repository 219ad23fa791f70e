package ping

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestByHandSettles: over iWARP the first message does not go at once. One connection of
// three has to show it, as this program may not run between the handshake and the message.
func TestByHandSettles(t *testing.T) {
	labtest.Require(t)
	l := labtest.Must(listenByHand(labtest.AddrOf(labtest.SIW) + ":0"))(t)
	labtest.Close(t, l)
	var longest time.Duration
	for range 3 {
		longest = max(longest, firstMessage(t, l))
	}
	if longest < cm.Settle/2 {
		t.Errorf("the first message went after %v", longest)
	}
}

// firstMessage is how long the first message of a new connection takes to post.
func firstMessage(t *testing.T, l listener) time.Duration {
	accepted, server := make(chan error), new(peer)
	go func() {
		accept, err := l.next(t.Context())
		if err == nil {
			err = accept(t.Context(), server)
		}
		accepted <- err
	}()
	client := new(peer)
	if err := dialByHand(t.Context(), client, netip.AddrPort{}, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	start := time.Now()
	err := client.send(t.Context(), client.data, MinSize)
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if _, err := server.receive(t.Context()); err != nil {
		t.Error(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	return took
}

package hosts

import (
	"context"
	"testing"
	"time"
)

// TestReboot resets the peer while all layers work, and others of their connections are idle
// until it is back. Working sessions send something every second, since a side that only waits
// does not notice that its peer has gone. Datagrams get no answer any more: they would have to
// be sent to the new server.
func TestReboot(t *testing.T) {
	if testing.Short() {
		t.Skip("boots the peer again")
	}
	p := dialPeer(t)
	idle := dialAll(t, p, drivers...)
	all := dialAll(t, p, drivers...)
	// TCP, below siw, notices at its next retry, at ever longer intervals.
	ctx, stop := context.WithTimeout(t.Context(), 2*workTimeout)
	defer stop()
	for _, w := range all {
		w.start(ctx, forever, 100_000)
	}
	waitUntilRunning(t, all)
	began := time.Now()
	stopPoking := pokeEverySecond(all)
	p.crash(t)
	booted := time.Now()
	t.Logf("the peer is back after %.1f s", booted.Sub(began).Seconds())
	for _, w := range idle {
		w.start(ctx, forever, 1000)
	}
	for _, w := range all {
		if !w.layer.Datagrams {
			w.expectError(t, "the peer's machine is reset", began)
		}
	}
	for _, w := range idle {
		if !w.layer.Datagrams {
			w.expectError(t, "a connection idle while the peer was reset", booted)
		}
	}
	stop()
	stopPoking()
	for _, w := range append(all, idle...) {
		<-w.done
	}
	closeAll(all)
	closeAll(idle)
	for _, w := range all {
		testNewConn(t, p, "after the reset", w.layer, w.driver, time.Now())
	}
}

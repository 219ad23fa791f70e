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
	idle := connect(t, p, drivers...)
	all := connect(t, p, drivers...)
	// TCP, below siw, notices at its next retry, at ever longer intervals.
	ctx, stop := context.WithTimeout(t.Context(), 2*workTime)
	defer stop()
	for _, o := range all {
		o.begin(ctx, forever, 100_000)
	}
	underWay(t, all)
	began := time.Now()
	stopPoking := poke(all)
	p.crash(t)
	booted := time.Now()
	t.Logf("the peer is back after %.1f s", booted.Sub(began).Seconds())
	for _, o := range idle {
		o.begin(ctx, forever, 1000)
	}
	for _, o := range all {
		if !o.layer.Datagrams {
			o.expect(t, "the peer's machine is reset", began)
		}
	}
	for _, o := range idle {
		if !o.layer.Datagrams {
			o.expect(t, "a connection idle while the peer was reset", booted)
		}
	}
	stop()
	stopPoking()
	for _, o := range append(all, idle...) {
		<-o.done
	}
	closeAll(all)
	closeAll(idle)
	for _, o := range all {
		renew(t, p, "after the reset", o.layer, o.driver, time.Now())
	}
}

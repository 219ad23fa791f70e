package hosts

import (
	"context"
	"testing"
	"time"
)

// TestReboot resets the peer in the midst of all layers' work, with connections
// beside them that are idle until it is back. Those at work send something every
// second, as nobody is missed who is only waited for. Datagrams wait in vain, and go on with the peer's next life only if they are sent to where that
// listens.
func TestReboot(t *testing.T) {
	if testing.Short() {
		t.Skip("boots the peer again")
	}
	p := dialPeer(t)
	idle := connect(t, p, drivers...)
	all := connect(t, p, drivers...)
	// TCP, under siw, finds out when it tries again, at ever longer intervals.
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

package hosts

import (
	"context"
	"testing"
	"time"
)

// TestLinkDown takes the wire's link away in the midst of all layers' work: this
// side's for a moment, and the peer's until everybody has noticed.
func TestLinkDown(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for what gives up")
	}
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		for _, r := range []struct {
			name string
			host int
			for_ time.Duration
		}{{"link down here for 2 s", 1, 2 * time.Second}, {"link down at the peer for 2 s", 2, 2 * time.Second}} {
			t.Run(r.name, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), workTime)
				defer stop()
				all := connect(t, p, d)
				defer closeAll(all)
				for _, o := range all {
					o.begin(ctx, forever, 100_000)
				}
				underWay(t, all)
				began := time.Now()
				p.run(t, r.host, "ip", "link", "set", d.wire, "down")
				time.Sleep(r.for_) // the fault, not a wait for anything
				p.run(t, r.host, "ip", "link", "set", d.wire, "up")
				up := time.Now()
				for _, o := range all {
					o.goesOn(t, r.name, began)
				}
				stop()
				for _, o := range all {
					<-o.done
					renew(t, p, "after "+r.name, o.layer, o.driver, up)
				}
			})
		}
		t.Run("gone", func(t *testing.T) {
			// TCP, under siw, would try for a quarter of an hour.
			const retries = "net.ipv4.tcp_retries2="
			p.run(t, 1, "sysctl", "-w", retries+"5")
			defer p.run(t, 1, "sysctl", "-w", retries+"15")
			ctx, stop := context.WithTimeout(t.Context(), workTime)
			defer stop()
			all := connect(t, p, d)
			defer closeAll(all)
			for _, o := range all {
				o.begin(ctx, forever, 100_000)
			}
			underWay(t, all)
			began := time.Now()
			p.run(t, 2, "ip", "link", "set", d.wire, "down")
			defer p.run(t, 2, "ip", "link", "set", d.wire, "up")
			for _, o := range all {
				if len(o.layer.died) > 0 {
					o.expect(t, "the peer does not answer any more", began)
				}
			}
		})
	})
}

// goesOn waits until a session has worked two rounds more, or ended with an error
// that its layer knows, and records that.
func (o *ongoing) goesOn(t *testing.T, what string, began time.Time) {
	t.Helper()
	for was := o.rounds.Load(); o.rounds.Load() < was+2; {
		select {
		case <-o.done:
			o.expect(t, what, began)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	record(t, what, o.layer, o.driver, "goes on, right", time.Since(began))
}

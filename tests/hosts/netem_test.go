package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// TestNetem runs all layers on a wire that loses, reorders, duplicates and damages packets
// in each direction. Data must be right, or the session must fail with an error of its
// layer.
func TestNetem(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	const rounds, size = 4, 100_000
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		for _, fault := range []struct{ name, args string }{
			{"packets lost", "loss %s"},
			{"packets reordered", "delay 2ms reorder %s"},
			{"packets twice", "duplicate %s"},
			{"bits flipped", "corrupt %s"},
		} {
			for _, rate := range []string{"0.1%", "1%", "10%"} {
				what := fault.name + ", " + rate
				t.Run(what, func(t *testing.T) {
					all := dialAll(t, p, d)
					defer closeAll(all)
					for host := 1; host <= 2; host++ {
						p.run(t, host, "sh", "-c", "tc qdisc add dev "+d.wire+" root netem "+fmt.Sprintf(fault.args, rate))
					}
					defer func() {
						for host := 1; host <= 2; host++ {
							p.run(t, host, "tc", "qdisc", "del", "dev", d.wire, "root")
						}
					}()
					ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
					defer stop()
					began := time.Now()
					for _, w := range all {
						w.start(ctx, rounds, size)
					}
					for _, w := range all {
						<-w.done
						late := errors.Is(w.err, context.DeadlineExceeded) || errors.Is(w.err, os.ErrDeadlineExceeded)
						switch n := time.Duration(w.rounds.Load()); {
						case w.err == nil:
							record(t, what, w.layer, w.driver, "right", w.ended.Sub(began))
						case late && n > 0:
							record(t, what, w.layer, w.driver, "right, but slow", w.ended.Sub(began)*rounds/n)
						case late:
							record(t, what, w.layer, w.driver, "too slow for a round", w.ended.Sub(began))
						default:
							w.expectError(t, what, began)
						}
					}
				})
			}
		}
	})
}

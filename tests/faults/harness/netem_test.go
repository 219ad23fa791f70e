package harness

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// networks are the faults of a network, each on a share of the packets.
var networks = []struct{ title, netem string }{
	{"packets are lost", "loss %"},
	{"packets overtake others by 2 ms", "delay 2ms reorder %"},
	{"packets come twice", "duplicate %"},
	{"packets have a bit turned over", "corrupt %"},
}

// TestNetwork runs the load over networks with such faults, for some seconds each.
func TestNetwork(t *testing.T) {
	rates := []string{"0.1%", "1%", "10%"}
	kinds := networks
	if !all {
		rates, kinds = rates[1:2], kinds[:1]
	}
	each(t, fault{
		quick: "cm",
		wired: true,
		run: func(e *env) {
			c, l := e.under()
			// An outgoing packet that is dropped, as during a change of the rules,
			// fails a queue pair of rxe, like a link that is down: so the rules change
			// between two rounds.
			l.turn.Lock()
			for _, kind := range kinds {
				for _, rate := range rates {
					e.wire.netem(strings.Replace(kind.netem, "%", rate, 1))
					e.title = kind.title + ": " + strings.Replace(rate, "%", " %", 1)
					if e.bad(l) {
						continue
					}
					e.wire.netem("")
					l = newLoadWithin(e.dial(c), 30*time.Second)
					labtest.Check(e, l.more(1))
					l.turn.Lock()
				}
			}
			l.turn.Unlock()
			if err := l.end(); err != nil {
				e.Error(err)
			}
			e.wire.netem("")
			e.close(l.s)
			c.kill()
		},
	})
}

// bad lets a load, whose turn the caller holds, continue over a bad network. It returns true
// if the load survives; then its turn is held again.
func (e *env) bad(l *load) bool {
	e.Helper()
	l.slowest()
	start := time.Now()
	l.turn.Unlock()
	limit := 2 * time.Second
	for n := int64(2); n > 0 || time.Since(start) < limit && n > -40; n-- {
		if l.more(1) != nil {
			break
		}
	}
	l.turn.Lock()
	packets, dropped := e.wire.passed()
	e.Logf("%s: %d packets, %d dropped", e.title, packets, dropped)
	if packets < 50 {
		e.Errorf("only %d packets went over the wire", packets)
	}
	if strings.HasPrefix(e.title, "packets are lost: 10") && dropped == 0 {
		e.Error("none was lost")
	}
	if !l.failed.Load() {
		e.row("continues", l.slowest(), 0)
		return true
	}
	l.turn.Unlock()
	<-l.done
	saw := e.expect(wants{
		"cm":    {verbs.WCRetryExcErr, verbs.ErrDisconnected},
		"rconn": {verbs.WCRetryExcErr, verbs.ErrDisconnected},
		"rmsg":  {verbs.WCRetryExcErr, verbs.ErrDisconnected, rmsg.ErrUnreadable},
		"rsock": {unix.ETIMEDOUT, unix.ECONNRESET},
	}, l.err)
	e.row(saw, l.when.Sub(start), 0)
	e.close(l.s)
	return false
}

package harness

import (
	"context"
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
	if !allFaults {
		rates, kinds = rates[1:2], kinds[:1]
	}
	runFault(t, fault{
		quick: "cm", long: true,
		wired: true,
		run: func(e *env) {
			c, l := e.startLoad()
			// An outgoing packet that is dropped, as during a change of the rules,
			// fails a queue pair of rxe, like a link that is down: so the rules change
			// between two rounds.
			l.roundMu.Lock()
			for _, kind := range kinds {
				for _, rate := range rates {
					e.wire.netem(strings.Replace(kind.netem, "%", rate, 1))
					e.title = kind.title + ": " + strings.Replace(rate, "%", " %", 1)
					if e.runOverNetem(l) {
						continue
					}
					e.wire.netem("")
					l = newLoadTimeout(e.dial(c), 30*time.Second)
					labtest.Check(e, l.waitRounds(1))
					l.roundMu.Lock()
				}
			}
			e.wire.netem("") // before the last rounds, which are to succeed
			l.roundMu.Unlock()
			if err := l.end(); err != nil {
				e.Error(err)
			}
			e.close(l.s)
			c.kill()
		},
	})
}

// runOverNetem lets a load, whose roundMu the caller holds, continue over a bad
// network. It returns true if the load survives; then the caller holds roundMu again.
func (e *env) runOverNetem(l *load) bool {
	e.Helper()
	l.takeLongest()
	lostBefore := 0
	if e.device == labtest.RXE {
		lostBefore = e.wire.lostDREQs()
	}
	start := time.Now()
	l.roundMu.Unlock()
	limit := 2 * time.Second
	for n := int64(2); n > 0 || time.Since(start) < limit && n > -40; n-- {
		if l.waitRounds(1) != nil {
			break
		}
	}
	l.roundMu.Lock()
	packets, dropped := e.wire.packetCounts()
	e.Logf("%s: %d packets, %d dropped", e.title, packets, dropped)
	if packets < 50 {
		e.Errorf("only %d packets went over the wire", packets)
	}
	if strings.HasPrefix(e.title, "packets are lost: 10") && dropped == 0 {
		e.Error("none was lost")
	}
	if !l.failed.Load() {
		e.result("continues", l.takeLongest(), 0)
		return true
	}
	l.roundMu.Unlock()
	<-l.done
	want := wantErrors{
		"cm":    {verbs.WCRetryExcErr, verbs.ErrDisconnected},
		"rconn": {verbs.WCRetryExcErr, verbs.ErrDisconnected},
		"rmsg":  {verbs.WCRetryExcErr, verbs.ErrDisconnected, rmsg.ErrUnreadable},
		"rsock": {unix.ETIMEDOUT, unix.ECONNRESET},
	}
	if e.device == labtest.RXE {
		// rxe fails a QP without an error completion if responses to a READ are out of
		// order: check_ack in rxe_comp.c returns COMPST_ERROR without setting a status,
		// and the kernel warns of this. All requests are flushed, and none has the cause.
		// And a side that only waits does not hear that the other has closed if the
		// datagram is lost: see cm.Endpoint.Close.
		lost := e.wire.lostDREQs() > lostBefore
		for _, layer := range []string{"cm", "rconn", "rmsg"} {
			want[layer] = append(want[layer], verbs.WCFlushErr)
			if lost {
				want[layer] = append(want[layer], context.DeadlineExceeded)
			}
		}
	}
	saw := e.expect(want, l.err)
	e.result(saw, l.endTime.Sub(start), 0)
	e.close(l.s)
	return false
}

package engine

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// slowPort is a port whose receiver is behind until caughtUp is set.
type slowPort struct {
	netif.Port
	caughtUp atomic.Bool
}

func (p *slowPort) Arrived() uint64         { return 1 }
func (p *slowPort) Handled(pos uint64) bool { return p.caughtUp.Load() }

// TestTimeoutWithBacklog checks that a timeout neither sends again nor counts as a retry while
// packets have arrived that are not processed.
func TestTimeoutWithBacklog(t *testing.T) {
	w := newWire(t, verbs.RC, func(a *verbs.QPAttr) { a.Timeout, a.RetryCount = 8, 1 }) // 1 ms
	port := &slowPort{Port: w.n.dev.gids.at(0).net}
	w.n.dev.gids.at(0).queue = port
	w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{w.n.sge(0, 8)}})
	w.expect(roce.RCSendOnly, wirePSN)
	w.silent()
	port.caughtUp.Store(true)
	w.expect(roce.RCSendOnly, wirePSN)
	w.n.cq.expect(t, 1, verbs.WCRetryExcErr)
}

// TestTimeoutToItself checks that a QP does not fail while its device is too slow to process
// what its QPs send each other.
func TestTimeoutToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
		x, y := pair(n, n, verbs.RC, func(a *verbs.QPAttr) { a.Timeout, a.RetryCount = 8, 0 })
		q := &n.dev.work
		running := func(v bool) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.running = v
		}
		running(true)
		x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{n.sge(0, 8)}, RemoteAddr: n.addr(8), RKey: n.mr.RKey()})
		time.Sleep(20 * time.Millisecond) // the request waits
		running(false)
		items := q.take()
		for rest := items; len(rest) > 0; {
			rest = rest[n.dev.processQP(rest):]
		}
		time.Sleep(20 * time.Millisecond) // the answer waits
		q.done(items)
		n.dev.drain()
		n.cq.expect(t, 1, verbs.WCSuccess)
		// A peer that does not answer is found nevertheless.
		y.mustModify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
		x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{n.sge(0, 8)}, RemoteAddr: n.addr(8), RKey: n.mr.RKey()})
		n.cq.expect(t, 2, verbs.WCRetryExcErr)
	})
}

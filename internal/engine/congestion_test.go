package engine

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs"
)

// TestCongestion transfers data over a network with short queues, and over one that loses
// packets, and counts the packets that are sent more than once.
func TestCongestion(t *testing.T) {
	const (
		size     = 64 << 10
		messages = 200
		needed   = size / testMTU * messages
	)
	for _, f := range []faults{{}, {queue: 100}, {queue: 20}, {loss: .01}} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			t.Run(fmt.Sprintf("%+v/%v", f, op), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newTestNetwork(1, f)
					a, b := newNode(t, net, size, addrA), newNode(t, net, size, addrB)
					x, _ := pair(a, b, verbs.RC, func(q *verbs.QPAttr) { q.Timeout = 14 })
					wr := verbs.SendWR{Opcode: op, SGL: []verbs.SGE{a.sge(0, size)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()}
					for posted := uint64(0); posted < 16; posted++ {
						wr.ID = posted
						x.post(wr)
					}
					for done := range uint64(messages) {
						a.cq.expect(t, done, verbs.WCSuccess)
						if wr.ID++; wr.ID < messages {
							x.post(wr)
						}
					}
					net.mu.Lock()
					sent, lost := net.sent, net.lost
					net.mu.Unlock()
					t.Logf("%d packets for %d, %d lost, %d retries", sent, needed, lost, a.counter("completer_retry_err"))
					if f == (faults{}) && lost+int(a.counter("completer_retry_err")) != 0 || sent > needed*2 {
						t.Error("too many packets")
					}
					a.dev.Close()
					b.dev.Close()
				})
			})
		}
	}
}

package engine

import (
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs"
)

// TestOversize sends what is larger than what the link carries, as it is when an interface's MTU
// has become smaller or the QP's path MTU is too large. Repeating it would not help: the request
// fails at once.
func TestOversize(t *testing.T) {
	const small, large = 64, 1000
	send := func(id uint64, n int) func(x, y *conn) verbs.SendWR {
		return func(x, y *conn) verbs.SendWR {
			return verbs.SendWR{ID: id, Opcode: verbs.OpSend, SGL: []verbs.SGE{x.n.sge(0, n)}}
		}
	}
	for _, tt := range []struct {
		name   string
		typ    verbs.QPType
		large  func(x, y *conn) verbs.SendWR
		status verbs.WCStatus
		peer   verbs.QPState
	}{
		{"UD", verbs.UD, send(2, large), verbs.WCLocLenErr, verbs.StateRTS},
		{"UD, longer than the port's MTU", verbs.UD, send(2, 4097), verbs.WCLocLenErr, verbs.StateRTS},
		{"UC", verbs.UC, send(2, large), verbs.WCLocLenErr, verbs.StateRTS},
		{"UC, second packet", verbs.UC, send(2, 1024+large), verbs.WCLocLenErr, verbs.StateRTS},
		{"RC", verbs.RC, send(2, large), verbs.WCLocLenErr, verbs.StateRTS},
		{"RC, READ response", verbs.RC, func(x, y *conn) verbs.SendWR {
			return verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{x.n.sge(0, large)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
		}, verbs.WCRemOpErr, verbs.StateErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newTestNetwork(1, faults{limit: 600})
				a, b := newNode(t, net, 8192, addrA), newNode(t, net, 8192, addrB)
				var x, y *conn
				var to verbs.UDAddr
				if tt.typ == verbs.UD {
					x, y = a.newQP(verbs.UD), b.newQP(verbs.UD)
					x.connect(y)
					y.connect(x)
					ah := must(a.pd.CreateAH(x.attrs(y).AV))(t)
					to = verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}
				} else {
					x, y = pair(a, b, tt.typ)
				}
				for id := range uint64(3) {
					y.postRecv(id, b.sge(0, 4096))
				}
				wrs := []verbs.SendWR{send(1, small)(x, y), tt.large(x, y), send(3, small)(x, y)}
				for i := range wrs {
					wrs[i].To = to
				}
				x.post(wrs[0])
				a.cq.expect(t, 1, verbs.WCSuccess)
				b.rcq.expect(t, 0, verbs.WCSuccess)
				x.post(wrs[1:]...)
				a.cq.expect(t, 2, tt.status)
				a.cq.expect(t, 3, verbs.WCFlushErr)
				if s := x.Query().State; s != verbs.StateErr {
					t.Errorf("the QP is in state %v", s)
				}
				if s := y.Query().State; s != tt.peer {
					t.Errorf("the peer's QP is in state %v", s)
				}
				// A READ may be repeated: the acknowledgement of the SEND after it comes first.
				if n := a.counter("completer_retry_err"); n != 0 && tt.status != verbs.WCRemOpErr {
					t.Errorf("%d retries", n)
				}
			})
		})
	}
}

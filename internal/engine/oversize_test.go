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

// TestSentBeforeFailure posts a request that the peer gets, and one that fails here: the first one has succeeded.
func TestSentBeforeFailure(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UD, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			net := newTestNetwork(1, faults{})
			a, b := newNode(t, net, 4096, addrA), newNode(t, net, 4096, addrB)
			x, y := pair(a, b, typ)
			wrs := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 4)}}, {ID: 2, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 4)}}}
			wrs[1].SGL[0].LKey++
			if typ == verbs.UD {
				ah := must(a.pd.CreateAH(x.attrs(y).AV))(t)
				for i := range wrs {
					wrs[i].To = verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}
				}
			}
			y.postRecv(5, b.sge(0, 256))
			x.post(wrs...)
			b.rcq.expect(t, 5, verbs.WCSuccess)
			a.cq.expect(t, 1, verbs.WCSuccess)
			a.cq.expect(t, 2, verbs.WCLocQPOpErr)
		})
	}
}

// TestDestroyedIsNotFlushed handles packets of a QP that is destroyed meanwhile: its requests never complete.
func TestDestroyedIsNotFlushed(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x := n.newQP(verbs.UD)
	x.mustModify(&verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: 1}, verbs.MaskState|maskUD)
	x.mustModify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	x.put(&verbs.SendWR{ID: 9, Opcode: verbs.OpSend})
	x.Destroy()
	r := newReceiver(n.dev, n.dev.gids.at(0)) // has found the QP before
	x.QP.lock()
	r.release(x.QP, true)
	if wc, ok := n.cq.poll(); ok {
		t.Errorf("%+v", wc)
	}
}

package engine

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
)

// TestRequestErrors posts requests that fail, followed by one that is flushed.
func TestRequestErrors(t *testing.T) {
	const none = verbs.WCStatus(1000)
	tests := []struct {
		name   string
		attr   func(*verbs.QPAttr) // of the responder
		recv   func(y *conn) []verbs.SGE
		wr     func(x, y *conn) verbs.SendWR
		status verbs.WCStatus
		peer   verbs.WCStatus // of the receive with which the peer's error completes, or none
		event  verbs.AsyncEventType
	}{
		{
			name: "write, wrong key",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey() ^ 1}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "write, behind the region",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(len(y.n.mem) - 7), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "write, the end of the address space",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: ^uint64(0) - 3, RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "write, QP does not permit it",
			attr: func(a *verbs.QPAttr) { a.Access = verbs.AccessRemoteRead },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemInvReqErr, peer: none, event: verbs.EventQPReqErr,
		},
		{
			name: "write, region does not permit it",
			wr: func(x, y *conn) verbs.SendWR {
				mr := y.n.register(y.n.mem, verbs.AccessRemoteRead)
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: mr.RKey()}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "write, region of another PD",
			wr: func(x, y *conn) verbs.SendWR {
				pd := must(y.n.dev.AllocPD())(y.n.t)
				mr := must(pd.RegisterMR(y.n.addr(0), 64, y.n.addr(0), verbs.AccessAll))(y.n.t)
				return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: mr.RKey()}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "read, wrong key",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey() ^ 0x100}
			},
			status: verbs.WCRemAccessErr, peer: none, event: verbs.EventQPAccessErr,
		},
		{
			name: "read, responder has no resources",
			attr: func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 0 },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemInvReqErr, peer: none, event: verbs.EventQPReqErr,
		},
		{
			name: "read, into read-only memory",
			wr: func(x, y *conn) verbs.SendWR {
				mr := x.n.register(x.n.mem, 0)
				return verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{{Addr: x.n.addr(0), Length: 8, LKey: mr.LKey()}}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCLocProtErr, peer: none,
		},
		{
			name: "atomic, misaligned",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(4), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemInvReqErr, peer: none, event: verbs.EventQPReqErr,
		},
		{
			name: "atomic, not permitted",
			attr: func(a *verbs.QPAttr) { a.Access = verbs.AccessRemoteRead },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{x.n.sge(0, 8)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
			},
			status: verbs.WCRemInvReqErr, peer: none, event: verbs.EventQPReqErr,
		},
		{
			name: "flush, not permitted",
			attr: func(a *verbs.QPAttr) { a.Access = verbs.AccessRemoteRead },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpFlush, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey(), Args: &verbs.SendArgs{Flush: verbs.Flush{Type: verbs.FlushGlobal, Length: 8}}}
			},
			status: verbs.WCRemInvReqErr, peer: none, event: verbs.EventQPReqErr,
		},
		{
			name: "send, longer than the receive",
			recv: func(y *conn) []verbs.SGE { return []verbs.SGE{y.n.sge(0, 7)} },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{x.n.sge(0, 8)}}
			},
			status: verbs.WCRemOpErr, peer: verbs.WCLocQPOpErr,
		},
		{
			name: "send, longer than the receive, second packet",
			recv: func(y *conn) []verbs.SGE { return []verbs.SGE{y.n.sge(0, testMTU+7)} },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{x.n.sge(0, testMTU+8)}}
			},
			status: verbs.WCRemOpErr, peer: verbs.WCLocQPOpErr,
		},
		{
			name: "send, receive with a wrong key",
			recv: func(y *conn) []verbs.SGE { return []verbs.SGE{{Addr: y.n.addr(0), Length: 8, LKey: y.n.mr.LKey() + 1}} },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{x.n.sge(0, 8)}}
			},
			status: verbs.WCRemOpErr, peer: verbs.WCLocQPOpErr,
		},
		{
			name: "send, invalidates the key of a region",
			recv: func(y *conn) []verbs.SGE { return []verbs.SGE{y.n.sge(0, 8)} },
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSendInv, RKey: y.n.mr.RKey(), SGL: []verbs.SGE{x.n.sge(0, 8)}}
			},
			status: verbs.WCSuccess, peer: verbs.WCRemInvReqErr,
		},
		{
			name: "wrong local key",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: x.n.addr(0), Length: 8, LKey: 77}}}
			},
			status: verbs.WCLocQPOpErr, peer: none,
		},
		{
			name: "outside of the local region",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{x.n.sge(len(x.n.mem)-4, 8)}}
			},
			status: verbs.WCLocQPOpErr, peer: none,
		},
		{
			name:   "unknown opcode",
			wr:     func(x, y *conn) verbs.SendWR { return verbs.SendWR{Opcode: 99} },
			status: verbs.WCLocQPOpErr, peer: none,
		},
		{
			name: "local invalidate of a region",
			wr: func(x, y *conn) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: x.n.mr.LKey()}
			},
			status: verbs.WCLocQPOpErr, peer: none,
		},
		{
			name: "bind to a wrong region",
			wr: func(x, y *conn) verbs.SendWR {
				mw := must(x.n.pd.AllocMW(verbs.MWType2))(x.n.t)
				return verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{RKey: mw.RKey(), NewRKey: mw.RKey() + 1, LKey: 5, Addr: x.n.addr(0), Length: 8}}}
			},
			status: verbs.WCMWBindErr, peer: none,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachPair(t, 8192, func(t *testing.T, a, b *node) {
				x, y := a.newQP(verbs.RC), b.newQP(verbs.RC)
				x.connect(y)
				if tt.attr != nil {
					y.connect(x, tt.attr)
				} else {
					y.connect(x)
				}
				if tt.recv != nil {
					y.postRecv(10, tt.recv(y)...)
				}
				y.postRecv(11, b.sge(0, 64))
				wr := tt.wr(x, y)
				wr.ID = 1
				wr.Flags = verbs.SendSignaled
				next := verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.sge(0, 0)}}
				x.put(&wr)
				x.put(&next)
				x.Doorbell()
				x.n.cq.expect(t, 1, tt.status)
				if tt.status != verbs.WCSuccess {
					x.n.cq.expect(t, 2, verbs.WCFlushErr)
					if s := x.Query().State; s != verbs.StateErr {
						t.Errorf("requester is in %v", s)
					}
				}
				if tt.peer != none {
					y.n.rcq.expect(t, 10, tt.peer)
				}
				if tt.peer != none || tt.event != 0 {
					y.n.rcq.expect(t, 11, verbs.WCFlushErr)
					if s := y.Query().State; s != verbs.StateErr {
						t.Errorf("responder is in %v", s)
					}
				}
				if tt.event != 0 {
					if e := y.nextEvent(); e != tt.event {
						t.Errorf("event %v, want %v", e, tt.event)
					}
				}
			})
		})
	}
}

// TestRNR sends without receive requests.
func TestRNR(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC, func(q *verbs.QPAttr) { q.RNRRetry = 3; q.Timeout = 16 })
		x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 8)}}, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
		x.n.cq.expect(t, 1, verbs.WCRNRRetryExcErr)
		x.n.cq.expect(t, 2, verbs.WCFlushErr)
		if n := b.counter("send_rnr_err"); n != 4 {
			t.Errorf("%d RNR NAKs, want 4", n)
		}
		if s := y.Query().State; s != verbs.StateRTS {
			t.Errorf("responder is in %v", s)
		}

		x, y = pair(a, b, verbs.RC)
		fill(a.mem[:3000], 1)
		x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWriteImm, SGL: []verbs.SGE{a.sge(0, 3000)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
		refused := func() {
			before := b.counter("send_rnr_err")
			until(t, "an RNR NAK", func() bool { return b.counter("send_rnr_err") > before })
		}
		refused()
		y.postRecv(3)
		x.n.cq.expect(t, 1, verbs.WCSuccess)
		refused()
		y.postRecv(4)
		x.n.cq.expect(t, 2, verbs.WCSuccess)
		y.n.rcq.expect(t, 3, verbs.WCSuccess)
		y.n.rcq.expect(t, 4, verbs.WCSuccess)
	})
}

// TestRetryExceeded sends to a QP that is gone.
func TestRetryExceeded(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC, func(q *verbs.QPAttr) { q.RetryCount = 3; q.Timeout = 1 })
		if err := y.Destroy(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 8)}}, verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
		x.n.cq.expect(t, 1, verbs.WCRetryExcErr)
		x.n.cq.expect(t, 2, verbs.WCFlushErr)
		if d := time.Since(start); d < 4*tick || d > 5*time.Second {
			t.Errorf("failed after %v", d)
		}
		if n := a.counter("completer_retry_err"); n != 3 {
			t.Errorf("%d retries, want 3", n)
		}
		if n := a.counter("retry_exceeded_err"); n != 1 {
			t.Errorf("retry_exceeded_err %d", n)
		}
	})
}

// TestCQOverflow completes more requests than a CQ holds.
func TestCQOverflow(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	small := n.newCQ(1)
	x := n.newQP(verbs.RC, func(i *QPInit) { i.SendCQ = small.CQ })
	y := n.newQP(verbs.RC)
	x.connect(y)
	y.connect(x)
	for i := range uint64(3) {
		x.post(verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{n.sge(0, 8)}, RemoteAddr: n.addr(8), RKey: n.mr.RKey()})
	}
	small.expect(t, 0, verbs.WCSuccess)
	if small.events.Load() != 2 {
		t.Errorf("%d events, want 2", small.events.Load())
	}

	// A receive that cannot complete ends the QP.
	x, y = n.newQP(verbs.RC), n.newQP(verbs.RC, func(i *QPInit) { i.RecvCQ = small.CQ })
	x.connect(y)
	y.connect(x)
	y.postRecv(1)
	y.postRecv(2)
	x.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend}, verbs.SendWR{ID: 6, Opcode: verbs.OpSend})
	n.cq.expect(t, 5, verbs.WCSuccess)
	if s := y.Query().State; s != verbs.StateErr {
		t.Errorf("receiver is in %v", s)
	}
}

// TestQKey sends datagrams with a wrong Q_Key.
func TestQKey(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	x, y := n.newQP(verbs.UD), n.newQP(verbs.UD)
	x.connect(y)
	y.connect(x)
	gid, _ := n.dev.GID(0)
	ah := must(n.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, Port: 1}))(t)
	y.postRecv(1, n.sge(0, 100))
	to := verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey + 1}
	x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, To: to})
	n.cq.expect(t, 1, verbs.WCSuccess)
	if n.dev.PortAttr().QKeyViolations != 1 {
		t.Error("the violation is not counted")
	}
	// Too long for the receive request, which stays.
	to.QKey = testQKey
	x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, To: to, SGL: []verbs.SGE{n.sge(0, 61)}}, verbs.SendWR{ID: 3, Opcode: verbs.OpSend, To: to, SGL: []verbs.SGE{n.sge(0, 60)}})
	n.cq.expect(t, 2, verbs.WCSuccess)
	n.cq.expect(t, 3, verbs.WCSuccess)
	n.rcq.expect(t, 1, verbs.WCSuccess)
	if wc, ok := n.rcq.poll(); ok {
		t.Errorf("completion %+v", wc)
	}
	x.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend, To: to}) // finds no receive
	n.cq.expect(t, 5, verbs.WCSuccess)
	if d := n.counter("out_of_buffer"); d != 1 {
		t.Errorf("%d datagrams are counted as dropped, want 1", d)
	}
	ah.Destroy()
	x.post(verbs.SendWR{ID: 4, Opcode: verbs.OpSend, To: to})
	n.cq.expect(t, 4, verbs.WCLocQPOpErr)
}

// TestRegister registers memory that is not mapped, and other wrong ranges.
func TestRegister(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	a := mmap.Addr(n.mem)
	for _, tt := range []struct {
		name               string
		addr, length, iova uint64
		access             verbs.Access
		ok                 bool
	}{
		{"all", a, 4096, 0, verbs.AccessAll, true},
		{"empty", a, 0, 0, verbs.AccessAll, true},
		{"low addresses", 8, 8, 0, verbs.AccessAll, false},
		{"not mapped", 1 << 46, 1 << 20, 0, verbs.AccessAll, false},
		{"end of the address space", ^uint64(0) - 10, 100, 0, verbs.AccessAll, false},
		{"iova overflows", a, 4096, ^uint64(0) - 10, verbs.AccessAll, false},
		{"remote write without local write", a, 4096, 0, verbs.AccessRemoteWrite, false},
		{"unknown access", a, 4096, 0, 1 << 15, false},
		{"on demand", a, 4096, 0, verbs.AccessOnDemand, false},
		{"persistent", a, 4096, 0, verbs.AccessFlushPersistent, false},
		{"too long", a, 1 << 62, 0, verbs.AccessAll, false},
	} {
		mr, err := n.pd.RegisterMR(tt.addr, tt.length, tt.iova, tt.access)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err == nil {
			if err := mr.Destroy(); err != nil {
				t.Errorf("%s: dereg: %v", tt.name, err)
			}
			if err := mr.Destroy(); err == nil {
				t.Errorf("%s: deregistered twice", tt.name)
			}
		}
	}
}

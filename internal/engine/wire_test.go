package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// wire is the peer of a QP, which a test plays packet by packet.
type wire struct {
	t    *testing.T
	n    *node
	qp   *conn
	port netif.Port
	flow roce.Flow
	recv chan roce.Packet
}

const (
	wireQPN = 0x777
	wirePSN = 0xfffff0
)

// newWire connects a QP to a peer that the test plays.
func newWire(t *testing.T, typ verbs.QPType, change ...func(*verbs.QPAttr)) *wire {
	net := newTestNetwork(1, faults{})
	w := &wire{t: t, n: newNode(t, net, 1<<20, addrA), recv: make(chan roce.Packet, 10000)}
	w.port, _ = net.Open(netip.AddrPortFrom(addrB, roce.Port))
	t.Cleanup(func() { w.port.Close() })
	w.port.Start(func(pkts []netif.Packet) {
		for i := range pkts {
			var p roce.Packet
			flow, _ := roce.NewFlow(pkts[i].Src, pkts[i].Dst)
			if !flow.Verify(pkts[i].Data, 0) || p.Decode(pkts[i].Data) != nil {
				t.Error("invalid packet")
			}
			p.Payload = bytes.Clone(p.Payload)
			w.recv <- p
		}
	})
	w.flow, _ = roce.NewFlow(w.port.Addr(), w.n.dev.gids.at(0).local)
	w.qp = w.n.newQP(typ)
	a := w.qp.attrs(w.qp, append([]func(*verbs.QPAttr){func(a *verbs.QPAttr) {
		a.DestQPNum, a.AV.DGID, a.Timeout = wireQPN, addrB.As16(), 0 // nothing is sent again by itself
	}}, change...)...)
	w.qp.connectTo(a)
	return w
}

// send sends packets to the QP, in one batch.
func (w *wire) send(pkts ...roce.Packet) {
	var data [][]byte
	for _, p := range pkts {
		p.PKey, p.DestQP = roce.DefaultPKey, w.qp.Num()
		data = append(data, w.flow.AppendICRC(p.Append(nil), 0))
	}
	w.sendRaw(data...)
}

func (w *wire) sendRaw(data ...[]byte) {
	var pkts []netif.Packet
	for _, d := range data {
		pkts = append(pkts, netif.Packet{Src: w.port.Addr(), Dst: w.n.dev.gids.at(0).local, Data: d})
	}
	w.port.Send(pkts)
}

// ack sends an acknowledgement.
func (w *wire) ack(psn roce.PSN, s roce.Syndrome) {
	w.send(roce.Packet{Opcode: roce.RCAcknowledge, PSN: psn, AETH: roce.AETH{Syndrome: s}})
}

// next returns the next packet of the QP.
func (w *wire) next() roce.Packet {
	w.t.Helper()
	select {
	case p := <-w.recv:
		return p
	case <-time.After(10 * time.Second):
		w.t.Fatal("no packet")
		return roce.Packet{}
	}
}

// expect waits for a packet with an opcode and a PSN.
func (w *wire) expect(o roce.Opcode, psn roce.PSN) roce.Packet {
	w.t.Helper()
	p := w.next()
	if p.Opcode != o || p.PSN != psn || p.DestQP != wireQPN && o.Transport() != roce.UD {
		w.t.Fatalf("%v %#x to %#x; want %v %#x", p.Opcode, p.PSN, p.DestQP, o, psn)
	}
	return p
}

// expectAck waits for an acknowledgement.
func (w *wire) expectAck(psn roce.PSN, s roce.Syndrome) {
	w.t.Helper()
	if p := w.expect(roce.RCAcknowledge, psn); p.AETH.Syndrome != s {
		w.t.Fatalf("%v; want %v", p.AETH.Syndrome, s)
	}
}

// silent fails if the QP sends something.
func (w *wire) silent() {
	w.t.Helper()
	select {
	case p := <-w.recv:
		w.t.Fatalf("unexpected %v %#x", p.Opcode, p.PSN)
	case <-time.After(20 * time.Millisecond):
	}
}

// TestWireResponder plays a requester.
func TestWireResponder(t *testing.T) {
	read := func(w *wire, psn roce.PSN, off, length int) roce.Packet {
		return roce.Packet{Opcode: roce.RCReadRequest, PSN: psn, AckReq: true, RETH: roce.RETH{VA: w.n.addr(off), RKey: w.n.mr.RKey(), Length: uint32(length)}}
	}
	write := func(w *wire, psn roce.PSN, data string) roce.Packet {
		return roce.Packet{Opcode: roce.RCWriteOnly, PSN: psn, AckReq: true, Payload: []byte(data), RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: uint32(len(data))}}
	}
	for _, tt := range []struct {
		name string
		run  func(w *wire)
	}{
		{"sequence", func(w *wire) {
			w.send(write(w, wirePSN, "a"))
			w.expectAck(wirePSN, roce.ACKUnlimited)
			w.send(write(w, wirePSN+2, "c"))
			w.expectAck(wirePSN+1, roce.NAKSequence)
			w.send(write(w, wirePSN+3, "d")) // one NAK is enough
			w.silent()
			w.send(write(w, wirePSN+1, "b"))
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			w.send(write(w, wirePSN+3, "d"))
			w.expectAck(wirePSN+2, roce.NAKSequence)
			if w.n.mem[0] != 'b' {
				w.t.Errorf("memory has %q", w.n.mem[0])
			}
			if n := w.n.counter("out_of_seq_request"); n != 2 {
				w.t.Errorf("out_of_seq_request %d", n)
			}
		}},
		{"duplicates", func(w *wire) {
			w.send(write(w, wirePSN, "a"))
			w.expectAck(wirePSN, roce.ACKUnlimited)
			w.send(write(w, wirePSN+1, "b"))
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			w.send(write(w, wirePSN, "x")) // is not executed again, and the ACK is the last one
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			if w.n.mem[0] != 'b' {
				w.t.Errorf("memory has %q", w.n.mem[0])
			}
		}},
		{"lost answer before more FLUSHes than are kept", func(w *wire) {
			p := roce.Packet{Opcode: roce.RCFetchAdd, PSN: wirePSN, Atomic: roce.AtomicETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), SwapAdd: 1}}
			w.send(p)
			w.expect(roce.RCAtomicAcknowledge, wirePSN)
			flush := roce.Packet{Opcode: roce.RCFlush, RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: 8}, FETH: roce.FETH{Placement: roce.FlushGlobal}}
			for i := range roce.PSN(8) {
				flush.PSN = wirePSN + 1 + i
				w.send(flush)
				w.expect(roce.RCReadResponseOnly, flush.PSN)
			}
			w.send(p)
			w.expect(roce.RCAtomicAcknowledge, wirePSN)
			flush.PSN = wirePSN + 1
			w.send(flush)
			w.expect(roce.RCReadResponseOnly, wirePSN+1)
		}},
		{"late READ of a region that is gone", func(w *wire) {
			mr := w.n.register(alignedBytes(64), verbs.AccessAll)
			p := roce.Packet{Opcode: roce.RCReadRequest, PSN: wirePSN, RETH: roce.RETH{VA: mr.IOVA(), RKey: mr.RKey(), Length: 64}}
			w.send(p)
			w.expect(roce.RCReadResponseOnly, wirePSN)
			w.send(write(w, wirePSN+1, "done"))
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			if err := mr.Destroy(); err != nil {
				w.t.Fatal(err)
			}
			w.send(p) // the network was slow
			w.expectAck(wirePSN, roce.NAKRemoteAccess)
			if s := w.qp.Query().State; s != verbs.StateRTS {
				w.t.Errorf("the QP is in state %v", s)
			}
		}},
		{"acknowledgement beside an old answer", func(w *wire) {
			w.send(read(w, wirePSN, 0, 8))
			w.expect(roce.RCReadResponseOnly, wirePSN)
			w.send(write(w, wirePSN+1, "a"), read(w, wirePSN, 0, 8))
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			w.expect(roce.RCReadResponseOnly, wirePSN)
		}},
		{"duplicate atomic", func(w *wire) {
			binary.NativeEndian.PutUint64(w.n.mem, 5)
			p := roce.Packet{Opcode: roce.RCFetchAdd, PSN: wirePSN, Atomic: roce.AtomicETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), SwapAdd: 3}}
			for range 3 {
				w.send(p)
				if a := w.expect(roce.RCAtomicAcknowledge, wirePSN); a.Orig != 5 {
					w.t.Errorf("old value %d", a.Orig)
				}
			}
			if v := binary.NativeEndian.Uint64(w.n.mem); v != 8 {
				w.t.Errorf("new value %d", v)
			}
			// Only the last 4 can be repeated.
			for i := range roce.PSN(4) {
				p.PSN = wirePSN + 1 + i
				w.send(p)
				w.expect(roce.RCAtomicAcknowledge, p.PSN)
			}
			p.PSN = wirePSN
			w.send(p)
			w.silent()
			if n := w.n.counter("duplicate_request"); n != 3 {
				w.t.Errorf("duplicate_request %d", n)
			}
		}},
		{"read", func(w *wire) {
			fill(w.n.mem, 5)
			const packets = 3
			length := 2*testMTU + 5
			w.send(read(w, wirePSN, 7, length))
			check := func(first roce.Opcode, from int) {
				w.t.Helper()
				var got []byte
				for i := from; i < packets; i++ {
					o := roce.RCReadResponseMiddle
					switch i {
					case from:
						o = first
					case packets - 1:
						o = roce.RCReadResponseLast
					}
					got = append(got, w.expect(o, wirePSN+roce.PSN(i)).Payload...)
				}
				if !bytes.Equal(got, w.n.mem[7+from*testMTU:7+length]) {
					w.t.Error("wrong data")
				}
			}
			check(roce.RCReadResponseFirst, 0)
			w.send(read(w, wirePSN, 7, length))
			check(roce.RCReadResponseFirst, 0)
			w.send(read(w, wirePSN+1, 7+testMTU, length-testMTU)) // the rest
			check(roce.RCReadResponseFirst, 1)
			w.send(read(w, wirePSN+2, 7+2*testMTU, 5))
			check(roce.RCReadResponseOnly, 2)
			w.send(read(w, wirePSN+1, 7+testMTU, length)) // more than was asked for
			w.send(read(w, wirePSN+1, 6, 8))
			w.silent()
			w.send(write(w, wirePSN+packets, "a"))
			w.expectAck(wirePSN+packets, roce.ACKUnlimited)
		}},
		{"long read", func(w *wire) {
			fill(w.n.mem, 5)
			length := len(w.n.mem)
			packets := roce.PSN(length / testMTU)
			w.qp.postRecv(1, w.n.sge(0, 10))
			w.send(read(w, wirePSN, 0, length))
			w.send(roce.Packet{Opcode: roce.RCSendOnly, PSN: roce.PSN(wirePSN).Add(int(packets)), AckReq: true})
			w.send(read(w, roce.PSN(wirePSN).Add(int(packets)+1), 0, length/2))
			var got []byte
			for i := range packets {
				got = append(got, w.next().Payload...)
				_ = i
			}
			if !bytes.Equal(got, w.n.mem) {
				w.t.Error("wrong data")
			}
			w.n.rcq.expect(w.t, 1, verbs.WCSuccess)
			for first := true; ; first = false { // the ACK may be implied
				p := w.next()
				if p.Opcode == roce.RCAcknowledge && first {
					continue
				}
				if p.Opcode == roce.RCReadResponseLast {
					break
				}
			}
		}},
		{"not ready", func(w *wire) {
			w.send(roce.Packet{Opcode: roce.RCSendOnly, PSN: wirePSN, AckReq: true})
			w.expectAck(wirePSN, roce.RNRNAK(1))
			w.qp.postRecv(1)
			w.send(roce.Packet{Opcode: roce.RCSendOnly, PSN: wirePSN, AckReq: true})
			w.expectAck(wirePSN, roce.ACKUnlimited)
			w.n.rcq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{"gap within a message", func(w *wire) {
			p := roce.Packet{
				Opcode: roce.RCWriteFirst, PSN: wirePSN, RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: 4 * testMTU},
				Payload: make([]byte, testMTU),
			}
			w.send(p)
			p.Opcode, p.PSN = roce.RCWriteMiddle, wirePSN+2
			w.send(p)
			w.expectAck(wirePSN+1, roce.NAKSequence)
			p.PSN = wirePSN + 1
			w.send(p)
			w.expectAck(wirePSN+1, roce.ACKUnlimited)
			p.PSN = wirePSN + 2
			w.send(p)
			w.silent()
		}},
		{"gap behind a gap", func(w *wire) {
			w.send(write(w, wirePSN+1, "abc"))
			w.expectAck(wirePSN, roce.NAKSequence)
			w.send(write(w, wirePSN, "abc"), write(w, wirePSN+2, "abc"))
			w.expectAck(wirePSN, roce.ACKUnlimited)
			w.expectAck(wirePSN+1, roce.NAKSequence)
		}},
		{"middle without first", func(w *wire) {
			w.send(roce.Packet{Opcode: roce.RCSendMiddle, PSN: wirePSN, Payload: make([]byte, testMTU)})
			w.expectAck(wirePSN, roce.NAKInvalid)
		}},
		{"first after first", func(w *wire) {
			w.qp.postRecv(1, w.n.sge(0, 5000))
			w.qp.postRecv(2, w.n.sge(0, 5000))
			w.send(roce.Packet{Opcode: roce.RCSendFirst, PSN: wirePSN, Payload: make([]byte, testMTU)})
			w.send(roce.Packet{Opcode: roce.RCSendFirst, PSN: wirePSN + 1, Payload: make([]byte, testMTU)})
			w.expectAck(wirePSN+1, roce.NAKInvalid)
			w.n.rcq.expect(w.t, 1, verbs.WCRemInvReqErr)
			w.n.rcq.expect(w.t, 2, verbs.WCFlushErr)
		}},
		{"first is not full", func(w *wire) {
			w.qp.postRecv(1, w.n.sge(0, 5000))
			w.send(roce.Packet{Opcode: roce.RCSendFirst, PSN: wirePSN, Payload: make([]byte, testMTU-1)})
			w.expectAck(wirePSN, roce.NAKInvalid)
			w.n.rcq.expect(w.t, 1, verbs.WCRemInvReqErr)
		}},
		{"only is longer than the MTU", func(w *wire) {
			w.send(write(w, wirePSN, string(make([]byte, testMTU+1))))
			w.expectAck(wirePSN, roce.NAKInvalid)
		}},
		{"write of another length", func(w *wire) {
			p := write(w, wirePSN, "abc")
			p.RETH.Length = 4
			w.send(p)
			w.expectAck(wirePSN, roce.NAKInvalid)
		}},
		{"more data than announced", func(w *wire) {
			p := write(w, wirePSN, "abcdef")
			p.RETH.Length = 0
			w.send(p)
			w.expectAck(wirePSN, roce.NAKInvalid)
		}},
		{"read of too much", func(w *wire) {
			p := read(w, wirePSN, 0, 0)
			p.RETH.Length = 1<<31 + 1
			w.send(p)
			w.expectAck(wirePSN, roce.NAKInvalid)
		}},
		{"read of a region that is gone", func(w *wire) {
			p := read(w, wirePSN, 0, 8)
			w.n.mr.Destroy()
			w.send(p)
			w.expectAck(wirePSN, roce.NAKRemoteAccess)
		}},
		{"ignored", func(w *wire) {
			good := write(w, wirePSN, "a")
			good.PKey, good.DestQP = roce.DefaultPKey, w.qp.Num()
			for _, change := range []func(p *roce.Packet){
				func(p *roce.Packet) { p.PKey = 0x1234 },
				func(p *roce.Packet) { p.DestQP = 0 },
				func(p *roce.Packet) { p.DestQP = 1 },
				func(p *roce.Packet) { p.DestQP = multicastQPN },
				func(p *roce.Packet) { p.DestQP = 0x123456 },
				func(p *roce.Packet) { p.Opcode = roce.Opcode(roce.UC) | roce.RCWriteOnly },
				func(p *roce.Packet) { p.Opcode = roce.UDSendOnly },
				func(p *roce.Packet) { p.Opcode = roce.CNP },
			} {
				p := good
				change(&p)
				w.sendRaw(w.flow.AppendICRC(p.Append(nil), 0))
			}
			data := w.flow.AppendICRC(good.Append(nil), 0)
			data[len(data)-1] ^= 1
			w.sendRaw(data)
			w.sendRaw(data[:20])
			w.sendRaw(nil)
			// from another address
			src := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), roce.Port)
			flow, _ := roce.NewFlow(src, w.n.dev.gids.at(0).local)
			w.port.Send([]netif.Packet{{Src: src, Dst: w.n.dev.gids.at(0).local, Data: flow.AppendICRC(good.Append(nil), 0)}})
			w.silent()
			if n := w.n.dev.PortAttr().BadPKeys; n != 1 {
				w.t.Errorf("%d bad P_Keys", n)
			}
			good.PKey = 0x7fff // a limited member
			w.sendRaw(w.flow.AppendICRC(good.Append(nil), 0))
			w.expectAck(wirePSN, roce.ACKUnlimited)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tt.run(newWire(t, verbs.RC)) })
		})
	}
}

// TestWireRequester plays a responder.
func TestWireRequester(t *testing.T) {
	send := func(id uint64) verbs.SendWR { return verbs.SendWR{ID: id, Opcode: verbs.OpSend} }
	for _, tt := range []struct {
		name   string
		change func(*verbs.QPAttr)
		run    func(w *wire)
	}{
		{name: "one ACK for many", run: func(w *wire) {
			w.qp.post(send(1), send(2), send(3))
			for i := range roce.PSN(3) {
				if p := w.expect(roce.RCSendOnly, wirePSN+i); !p.AckReq {
					w.t.Error("no acknowledgement is requested")
				}
			}
			w.ack(wirePSN+1, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			w.n.cq.expect(w.t, 2, verbs.WCSuccess)
			w.ack(wirePSN+9, roce.ACKUnlimited) // has not been sent
			w.silent()
			if wc, ok := w.n.cq.poll(); ok {
				w.t.Errorf("completion %+v", wc)
			}
			w.ack(wirePSN+2, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 3, verbs.WCSuccess)
		}},
		{name: "NAK sequence", run: func(w *wire) {
			w.qp.post(send(1), send(2), send(3))
			for i := range roce.PSN(3) {
				w.expect(roce.RCSendOnly, wirePSN+i)
			}
			w.ack(wirePSN+1, roce.NAKSequence)
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			w.expect(roce.RCSendOnly, wirePSN+1)
			w.expect(roce.RCSendOnly, wirePSN+2)
			w.ack(wirePSN+1, roce.NAKSequence) // nothing has been acknowledged since
			w.silent()
			w.ack(wirePSN+2, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 2, verbs.WCSuccess)
			w.n.cq.expect(w.t, 3, verbs.WCSuccess)
			if n := w.n.counter("rcvd_seq_err"); n != 2 {
				w.t.Errorf("rcvd_seq_err %d", n)
			}
		}},
		{name: "window between messages that drain", run: func(w *wire) {
			mw, err := w.n.pd.AllocMW(verbs.MWType1)
			if err != nil {
				w.t.Fatal(err)
			}
			w.qp.post(send(1), verbs.SendWR{ID: 2, Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{
				LKey: w.n.mr.LKey(), RKey: mw.RKey(), NewRKey: mw.RKey(), Access: verbs.AccessRemoteRead, Addr: w.n.addr(0), Length: 64,
			}}}, send(3))
			w.expect(roce.RCSendOnly, wirePSN)
			w.expect(roce.RCSendOnly, wirePSN+1)
			w.qp.mustModify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState)
			w.ack(wirePSN, roce.NAKSequence)
			w.expect(roce.RCSendOnly, wirePSN)
			w.expect(roce.RCSendOnly, wirePSN+1)
		}},
		{name: "part of a message", run: func(w *wire) {
			fill(w.n.mem, 1)
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{w.n.sge(0, testMTU/2), w.n.sge(testMTU/2, 2*testMTU)}})
			w.expect(roce.RCSendFirst, wirePSN)
			w.expect(roce.RCSendMiddle, wirePSN+1)
			w.expect(roce.RCSendLast, wirePSN+2)
			w.ack(wirePSN+1, roce.NAKSequence)
			p := w.expect(roce.RCSendMiddle, wirePSN+1)
			if !bytes.Equal(p.Payload, w.n.mem[testMTU:2*testMTU]) {
				w.t.Error("wrong data")
			}
			if p = w.expect(roce.RCSendLast, wirePSN+2); !bytes.Equal(p.Payload, w.n.mem[2*testMTU:2*testMTU+testMTU/2]) {
				w.t.Error("wrong data")
			}
			w.ack(wirePSN+2, roce.NAKSequence) // a NAK acknowledges what is before it
			w.expect(roce.RCSendLast, wirePSN+2)
			w.ack(wirePSN+2, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{name: "RNR NAK", change: func(a *verbs.QPAttr) { a.RNRRetry = 1 }, run: func(w *wire) {
			w.qp.post(send(1), send(2))
			w.expect(roce.RCSendOnly, wirePSN)
			w.expect(roce.RCSendOnly, wirePSN+1)
			start := time.Now()
			w.ack(wirePSN+1, roce.RNRNAK(20)) // 10.24 ms
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			w.qp.post(send(3))
			w.expect(roce.RCSendOnly, wirePSN+1)
			if d := time.Since(start); d != 10240*time.Microsecond {
				w.t.Errorf("sent again after %v", d)
			}
			w.expect(roce.RCSendOnly, wirePSN+2)
			w.ack(wirePSN+1, roce.RNRNAK(1))
			w.n.cq.expect(w.t, 2, verbs.WCRNRRetryExcErr)
			w.n.cq.expect(w.t, 3, verbs.WCFlushErr)
		}},
		{name: "NAK invalid", run: func(w *wire) {
			w.qp.post(send(1), send(2))
			w.ack(wirePSN+1, roce.NAKInvalid)
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			w.n.cq.expect(w.t, 2, verbs.WCRemInvReqErr)
		}},
		{name: "unknown NAK", run: func(w *wire) {
			w.qp.post(send(1))
			w.ack(wirePSN, 0x6f)
			w.n.cq.expect(w.t, 1, verbs.WCRemOpErr)
		}},
		{name: "reserved syndrome", run: func(w *wire) {
			w.qp.post(send(1))
			w.ack(wirePSN, 0x40)
			w.n.cq.expect(w.t, 1, verbs.WCBadRespErr)
		}},
		{name: "READ response to a SEND", run: func(w *wire) {
			w.qp.post(send(1))
			w.send(roce.Packet{Opcode: roce.RCReadResponseOnly, PSN: wirePSN, AETH: roce.AETH{Syndrome: roce.ACKUnlimited}})
			w.n.cq.expect(w.t, 1, verbs.WCFatalErr)
		}},
		{name: "ACK within the answer to a READ", run: func(w *wire) {
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{w.n.sge(0, 2*testMTU)}, RemoteAddr: 0x1000, RKey: 5})
			p := w.expect(roce.RCReadRequest, wirePSN)
			if p.RETH != (roce.RETH{VA: 0x1000, RKey: 5, Length: 2 * testMTU}) {
				w.t.Errorf("request %+v", p.RETH)
			}
			data := make([]byte, testMTU)
			ok := roce.AETH{Syndrome: roce.ACKUnlimited}
			w.send(roce.Packet{Opcode: roce.RCReadResponseFirst, PSN: wirePSN, Payload: data, AETH: ok})
			w.ack(wirePSN-1, roce.ACKUnlimited)
			w.ack(wirePSN, roce.ACKUnlimited)
			w.ack(wirePSN+1, roce.ACKUnlimited)
			w.send(roce.Packet{Opcode: roce.RCReadResponseFirst, PSN: wirePSN, Payload: data, AETH: ok}) // again
			w.silent()
			if wc, ok := w.n.cq.poll(); ok {
				w.t.Errorf("completion %+v", wc)
			}
			w.send(roce.Packet{Opcode: roce.RCReadResponseLast, PSN: wirePSN + 1, Payload: data, AETH: ok})
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{name: "READ of nothing", run: func(w *wire) {
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, RemoteAddr: 0x1000, RKey: 5})
			if p := w.expect(roce.RCReadRequest, wirePSN); p.RETH != (roce.RETH{VA: 0x1000}) {
				w.t.Errorf("request %+v", p.RETH)
			}
			w.send(roce.Packet{Opcode: roce.RCReadResponseOnly, PSN: wirePSN, AETH: roce.AETH{Syndrome: roce.ACKUnlimited}})
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{name: "rest of a READ", run: func(w *wire) {
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{w.n.sge(0, 3*testMTU)}, RemoteAddr: 0x1000, RKey: 5})
			w.expect(roce.RCReadRequest, wirePSN)
			data := make([]byte, testMTU)
			ok := roce.AETH{Syndrome: roce.ACKUnlimited}
			w.send(roce.Packet{Opcode: roce.RCReadResponseFirst, PSN: wirePSN, Payload: data, AETH: ok})
			w.send(roce.Packet{Opcode: roce.RCReadResponseLast, PSN: wirePSN + 2, Payload: data, AETH: ok})
			p := w.expect(roce.RCReadRequest, wirePSN+1)
			if p.RETH != (roce.RETH{VA: 0x1000 + testMTU, RKey: 5, Length: 2 * testMTU}) {
				w.t.Errorf("request %+v", p.RETH)
			}
			// rxe continues with MIDDLE.
			w.send(roce.Packet{Opcode: roce.RCReadResponseMiddle, PSN: wirePSN + 1, Payload: data})
			w.send(roce.Packet{Opcode: roce.RCReadResponseLast, PSN: wirePSN + 2, Payload: data, AETH: ok})
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{name: "short READ response", run: func(w *wire) {
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{w.n.sge(0, 100)}})
			w.send(roce.Packet{Opcode: roce.RCReadResponseOnly, PSN: wirePSN, Payload: make([]byte, 99), AETH: roce.AETH{Syndrome: roce.ACKUnlimited}})
			w.n.cq.expect(w.t, 1, verbs.WCBadRespErr)
		}},
		{name: "READ in parts", run: func(w *wire) {
			const length = 500 * testMTU
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{w.n.sge(0, length)}})
			ok := roce.AETH{Syndrome: roce.ACKUnlimited}
			for got := 0; got < length; {
				p := w.next()
				n := int(p.RETH.Length)
				if p.Opcode != roce.RCReadRequest || p.RETH.VA != uint64(got) || p.PSN != roce.PSN(wirePSN).Add(got/testMTU) || n > maxWindow*testMTU {
					w.t.Fatalf("%v %#x %+v after %d bytes", p.Opcode, p.PSN, p.RETH, got)
				}
				for off := 0; off < n; off += testMTU {
					o := roce.RCReadResponseMiddle
					switch {
					case n == testMTU:
						o = roce.RCReadResponseOnly
					case off == 0:
						o = roce.RCReadResponseFirst
					case off+testMTU == n:
						o = roce.RCReadResponseLast
					}
					w.send(roce.Packet{Opcode: o, PSN: p.PSN.Add(off / testMTU), Payload: make([]byte, testMTU), AETH: ok})
				}
				got += n
			}
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
		}},
		{name: "credits for READs", change: func(a *verbs.QPAttr) { a.MaxRDAtomic = 1 }, run: func(w *wire) {
			read := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{w.n.sge(0, 8)}}
			add := verbs.SendWR{ID: 2, Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{w.n.sge(0, 8)}, Args: &verbs.SendArgs{CompareAdd: 7}, RemoteAddr: 64}
			fenced := send(3)
			fenced.Flags = verbs.SendFence
			w.qp.post(read, add, fenced)
			w.expect(roce.RCReadRequest, wirePSN)
			w.silent()
			w.send(roce.Packet{Opcode: roce.RCReadResponseOnly, PSN: wirePSN, Payload: make([]byte, 8), AETH: roce.AETH{Syndrome: roce.ACKUnlimited}})
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			if p := w.expect(roce.RCFetchAdd, wirePSN+1); p.Atomic.SwapAdd != 7 || p.Atomic.VA != 64 {
				w.t.Errorf("%+v", p.Atomic)
			}
			w.silent()
			w.ack(wirePSN+1, roce.ACKUnlimited) // has no value
			w.silent()
			w.send(roce.Packet{Opcode: roce.RCAtomicAcknowledge, PSN: wirePSN + 1, Orig: 99, AETH: roce.AETH{Syndrome: roce.ACKUnlimited}})
			w.n.cq.expect(w.t, 2, verbs.WCSuccess)
			if v := binary.NativeEndian.Uint64(w.n.mem); v != 99 {
				w.t.Errorf("value %d", v)
			}
			w.expect(roce.RCSendOnly, wirePSN+2)
		}},
		{name: "window", run: func(w *wire) {
			w.qp.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{w.n.sge(0, 1<<20)}})
			sent := 0
			for more := true; more; {
				select {
				case p := <-w.recv:
					if sent++; sent == initialWindow && !p.AckReq {
						w.t.Error("the last packet of the window requests no acknowledgement")
					}
				case <-time.After(20 * time.Millisecond):
					more = false
				}
			}
			if sent != initialWindow {
				w.t.Errorf("%d packets without acknowledgement, want %d", sent, initialWindow)
			}
		}},
		{name: "probe", change: func(a *verbs.QPAttr) { a.Timeout = 21 }, run: func(w *wire) { // 8.6 s
			w.qp.post(send(1))
			w.expect(roce.RCSendOnly, wirePSN)
			w.ack(wirePSN, roce.ACKUnlimited) // the round trip is known now
			w.n.cq.expect(w.t, 1, verbs.WCSuccess)
			w.qp.post(send(2), send(3), send(4))
			for i := range roce.PSN(3) {
				w.expect(roce.RCSendOnly, wirePSN+1+i)
			}
			if p := w.expect(roce.RCSendOnly, wirePSN+1); !p.AckReq {
				w.t.Error("the probe requests no acknowledgement")
			}
			w.ack(wirePSN+1, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 2, verbs.WCSuccess)
			for i := range roce.PSN(2) {
				w.expect(roce.RCSendOnly, wirePSN+2+i)
			}
			w.expect(roce.RCSendOnly, wirePSN+2)
			w.ack(wirePSN+3, roce.ACKUnlimited)
			w.n.cq.expect(w.t, 3, verbs.WCSuccess)
			w.n.cq.expect(w.t, 4, verbs.WCSuccess)
			if n := w.n.counter("completer_retry_err"); n != 0 {
				w.t.Errorf("%d retries", n)
			}
		}},
		{name: "timeout", change: func(a *verbs.QPAttr) { a.Timeout, a.RetryCount = 10, 1 }, run: func(w *wire) {
			w.qp.post(send(1), send(2))
			for range 2 {
				w.expect(roce.RCSendOnly, wirePSN)
				w.expect(roce.RCSendOnly, wirePSN+1)
			}
			w.n.cq.expect(w.t, 1, verbs.WCRetryExcErr)
			w.n.cq.expect(w.t, 2, verbs.WCFlushErr)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var change []func(*verbs.QPAttr)
			if tt.change != nil {
				change = append(change, tt.change)
			}
			synctest.Test(t, func(t *testing.T) { tt.run(newWire(t, verbs.RC, change...)) })
		})
	}
}

// TestRoundTripOfRepeated repeats a packet for each reason there is. As the acknowledgement may be
// one of either, no round trip is measured by it (Karn's algorithm); the next packet that is sent
// once is measured.
func TestRoundTripOfRepeated(t *testing.T) {
	const trip = 3 * time.Millisecond
	for _, tt := range []struct {
		name   string
		known  bool // the round trip, so that a probe comes before the timeout
		repeat func(w *wire)
	}{
		{"timeout", false, func(*wire) {}},
		{"NAK", false, func(w *wire) { w.ack(wirePSN, roce.NAKSequence) }},
		{"RNR NAK", false, func(w *wire) { w.ack(wirePSN, roce.RNRNAK(1)) }},
		{"probe", true, func(*wire) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t, verbs.RC, func(a *verbs.QPAttr) { a.Timeout = 14 }) // 67 ms
				probe := func() lossProbe {
					synctest.Wait()
					w.qp.lock()
					defer w.qp.unlock()
					return w.qp.requester.comp.probe
				}
				psn := roce.PSN(wirePSN)
				exchange := func(repeat bool) {
					w.qp.post(verbs.SendWR{Opcode: verbs.OpSend})
					w.expect(roce.RCSendOnly, psn)
					if repeat {
						tt.repeat(w)
						w.expect(roce.RCSendOnly, psn)
						time.Sleep(trip)
					}
					time.Sleep(trip)
					w.ack(psn, roce.ACKUnlimited)
					w.n.cq.expect(t, 0, verbs.WCSuccess)
					psn = psn.Add(1)
				}
				want := time.Duration(0)
				if tt.known {
					exchange(false)
					want = trip
				}
				exchange(true)
				if p := probe(); p.trip != want || p.timing {
					t.Errorf("the round trip is %v, after a repetition, and being measured: %v; want %v", p.trip, p.timing, want)
				}
				exchange(false)
				if p := probe(); p.trip != trip {
					t.Errorf("the round trip is %v, want %v", p.trip, trip)
				}
			})
		})
	}
}

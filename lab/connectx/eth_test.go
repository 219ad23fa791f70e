//go:build linux

package connectx

import (
	"bytes"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

// netdev is a network function as mlx5e has it: a send queue and a receive queue.
type netdev struct {
	m                  *machine
	td, tis, sqn, rqn  uint32
	rqt, tir, key      uint32
	sendCQ, recvCQ     *testCQ
	sq, rq             buffer
	sqRecord, rqRecord buffer
	pi, rpi            uint16
	data               buffer // a page for each of 16 receives
	page               uint64 // of frame
}

const (
	netdevLog   = 4
	rqStride    = 32
	receiveSize = 2048
)

func (m *machine) physicalKey() uint32 {
	return m.register(0, 0, nil, func(mkc []byte) {
		ifc.MkcAccessMode10.Set(mkc, ifc.MkcModePa)
		ifc.MkcLength64.Set(mkc, 1)
	})
}

func (m *machine) newNetdev() *netdev {
	m.t.Helper()
	n := &netdev{
		m: m, sendCQ: m.createCQ(6, 64), recvCQ: m.createCQ(6, 64), key: m.physicalKey(),
		sq: m.alloc(64 << netdevLog), rq: m.alloc(rqStride << netdevLog), sqRecord: m.alloc(8), rqRecord: m.alloc(8),
		data: m.alloc(pageBytes << netdevLog),
	}
	out, _ := m.mustRun(ifc.OpAllocTransportDomain, 0, nil)
	n.td = ifc.AllocTransportDomainOutTransportDomain.U32(out)
	out, _ = m.mustRun(ifc.OpCreateTis, 0, func(in []byte) { ifc.TiscTransportDomain.Set(ifc.CreateTisInCtx.At(in), uint64(n.td)) })
	n.tis = ifc.CreateTisOutTisn.U32(out)
	out, _ = m.mustRun(ifc.OpCreateSq, 0, func(in []byte) {
		ctx := ifc.CreateSqInCtx.At(in)
		ifc.SqcCqn.Set(ctx, uint64(n.sendCQ.num))
		ifc.SqcTisLstSz.Set(ctx, 1)
		ifc.SqcTisNum0.Set(ctx, uint64(n.tis))
		n.fill(ifc.SqcWq.At(ctx), n.sqRecord, 6)
	}, n.sq.list()...)
	n.sqn = ifc.CreateSqOutSqn.U32(out)
	out, _ = m.mustRun(ifc.OpCreateRq, 0, func(in []byte) {
		ctx := ifc.CreateRqInCtx.At(in)
		ifc.RqcCqn.Set(ctx, uint64(n.recvCQ.num))
		n.fill(ifc.RqcWq.At(ctx), n.rqRecord, 5)
	}, n.rq.list()...)
	n.rqn = ifc.CreateRqOutRqn.U32(out)
	out, _ = m.mustRun(ifc.OpCreateRqt, 0, func(in []byte) {
		ctx := ifc.CreateRqtInRqtContext.At(in)
		ifc.RqtcRqtMaxSize.Set(ctx, 1)
		ifc.RqtcRqtActualSize.Set(ctx, 1)
	}, be.AppendUint32(nil, n.rqn)...)
	n.rqt = ifc.CreateRqtOutRqtn.U32(out)
	out, _ = m.mustRun(ifc.OpCreateTir, 0, func(in []byte) {
		ctx := ifc.CreateTirInCtx.At(in)
		ifc.TircDispType.Set(ctx, tirIndirect)
		ifc.TircIndirectTable.Set(ctx, uint64(n.rqt))
		ifc.TircRxHashFn.Set(ctx, 2)
		ifc.TircRxHashFieldSelectorOuter.Set(ctx, 3)
		ifc.TircTransportDomain.Set(ctx, uint64(n.td))
	})
	n.tir = ifc.CreateTirOutTirn.U32(out)
	// As mlx5e does, another for a single queue, which here is one that receives nothing.
	out, _ = m.mustRun(ifc.OpCreateRq, 0, func(in []byte) {
		ctx := ifc.CreateRqInCtx.At(in)
		ifc.RqcCqn.Set(ctx, uint64(n.recvCQ.num))
		n.fill(ifc.RqcWq.At(ctx), n.rqRecord, 5)
	}, n.rq.list()...)
	single := ifc.CreateRqOutRqn.U32(out)
	out, _ = m.mustRun(ifc.OpCreateRqt, 0, func(in []byte) {
		ctx := ifc.CreateRqtInRqtContext.At(in)
		ifc.RqtcRqtMaxSize.Set(ctx, 1)
		ifc.RqtcRqtActualSize.Set(ctx, 1)
	}, be.AppendUint32(nil, single)...)
	m.mustRun(ifc.OpCreateTir, 0, func(in []byte) {
		ctx := ifc.CreateTirInCtx.At(in)
		ifc.TircDispType.Set(ctx, tirIndirect)
		ifc.TircIndirectTable.Set(ctx, ifc.CreateRqtOutRqtn.Get(out))
		ifc.TircRxHashFn.Set(ctx, 1)
		ifc.TircTransportDomain.Set(ctx, uint64(n.td))
	})
	n.modifySQ(stateReset, stateReady, ifc.StatusOk)
	n.modifyRQ(stateReset, stateReady, 0, false)
	for range 1 << netdevLog {
		n.post()
	}
	return n
}

func (n *netdev) fill(w []byte, record buffer, stride uint64) {
	ifc.WqWqType.Set(w, wqCyclic)
	ifc.WqPd.Set(w, uint64(n.m.pd))
	ifc.WqUarPage.Set(w, uint64(n.m.uar))
	ifc.WqDbrAddr.Set(w, record.addr[0])
	ifc.WqLogWqSz.Set(w, netdevLog)
	ifc.WqLogWqStride.Set(w, stride)
}

func (n *netdev) modifySQ(from, to int, want ifc.Status) {
	n.m.t.Helper()
	_, st := n.m.run(ifc.OpModifySq, 0, func(in []byte) {
		ifc.ModifySqInSqn.Set(in, uint64(n.sqn))
		ifc.ModifySqInSqState.Set(in, uint64(from))
		ifc.SqcState.Set(ifc.ModifySqInCtx.At(in), uint64(to))
	})
	if st != want {
		n.m.t.Fatalf("send queue from %d to %d: status %#x, want %#x", from, to, st, want)
	}
}

func (n *netdev) modifyRQ(from, to int, mask uint64, keepVLAN bool) {
	n.m.t.Helper()
	n.m.mustRun(ifc.OpModifyRq, 0, func(in []byte) {
		ifc.ModifyRqInRqn.Set(in, uint64(n.rqn))
		ifc.ModifyRqInRqState.Set(in, uint64(from))
		ifc.ModifyRqInModifyBitmask.Set(in, mask)
		ifc.RqcState.Set(ifc.ModifyRqInCtx.At(in), uint64(to))
		if keepVLAN {
			ifc.RqcVsd.Set(ifc.ModifyRqInCtx.At(in), 1)
		}
	})
}

// post posts a receive of two segments.
func (n *netdev) post() {
	i := int(n.rpi) & (1<<netdevLog - 1)
	a := n.data.addr[i]
	copy(n.rq.at(i*rqStride, rqStride), slices.Concat(seg(64, n.key, a), seg(receiveSize-64, n.key, a+64)))
	n.rpi++
	be.PutUint32(n.rqRecord.at(0, 4), uint32(n.rpi))
}

// send posts a request, of which segs follow the control segment.
func (n *netdev) send(opcode byte, segs ...[]byte) (counter uint16) {
	n.m.t.Helper()
	counter = n.pi
	n.raw(n.request(opcode, ifc.WqeCtrlCqUpdate, segs...))
	return counter
}

func (n *netdev) request(opcode, flags byte, segs ...[]byte) []byte {
	body := slices.Concat(segs...)
	wqe := make([]byte, 16, 16+len(body))
	be.PutUint32(wqe, uint32(n.pi)<<8|uint32(opcode))
	be.PutUint32(wqe[4:], n.sqn<<8|uint32(16+len(body))/16)
	wqe[ctrlFlags] = flags
	return append(wqe, body...)
}

// raw puts a request in the queue and rings.
func (n *netdev) raw(wqe []byte) {
	first := be.AppendUint32(bytes.Clone(wqe[:4]), n.sqn<<8)
	n.put(wqe)
	n.m.dev.doorbell(n.m.uar, uarSend, first)
}

func (n *netdev) put(wqe []byte) {
	for ; len(wqe) > 0; n.pi++ {
		k := copy(n.sq.at(int(n.pi)&(1<<netdevLog-1)*64, 64), wqe)
		wqe = wqe[k:]
	}
	be.PutUint32(n.sqRecord.at(4, 4), uint32(n.pi))
}

// receive waits for a frame and posts its receive again.
func (n *netdev) receive() (frame []byte, c cqe) {
	n.m.t.Helper()
	c = n.recvCQ.next()
	if c[cqeOpOwn]>>4 != cqeSend {
		n.m.t.Fatalf("receive: % x", c)
	}
	i := int(be.Uint16(c[cqeCounter:])) & (1<<netdevLog - 1)
	frame = bytes.Clone(n.m.bytes(n.data.addr[i], int(be.Uint32(c[cqeByteCount:]))))
	n.post()
	return frame, c
}

// ethSeg is an Ethernet segment with an inline header or, if that is nil, a VLAN tag or none.
func ethSeg(flags byte, mss uint16, header []byte, vlan uint16) []byte {
	s := make([]byte, 14, 64)
	s[4] = flags
	be.PutUint16(s[6:], mss)
	switch {
	case header != nil:
		be.PutUint16(s[12:], uint16(len(header)))
		s = append(s, header...)
	case vlan != 0:
		be.PutUint16(s[12:], insertVLAN)
		s = be.AppendUint16(s, vlan)
	}
	return append(s, make([]byte, (16-len(s)%16)%16)...)
}

// tcpFrame returns a frame without checksums.
func tcpFrame(v6 bool, flags byte, payload []byte) []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00}
	if v6 {
		f[12], f[13] = 0x86, 0xdd
		f = append(f, 0x60, 0, 0, 0, 0, 0, 6, 64)
		be.PutUint16(f[18:], uint16(20+len(payload)))
		f = append(f, bytes.Repeat([]byte{0xfd, 1}, 8)...)
		f = append(f, bytes.Repeat([]byte{0xfd, 2}, 8)...)
	} else {
		f = append(f, 0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
		be.PutUint16(f[16:], uint16(40+len(payload)))
	}
	f = append(f, 0x30, 0x39, 0, 80, 0, 0, 1, 0, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0)
	return append(f, payload...)
}

// checked returns a frame with its checksums, computed in the plainest way.
func checked(f []byte, v6 bool) []byte {
	f = bytes.Clone(f)
	plain := func(parts ...[]byte) uint16 {
		b, s := slices.Concat(parts...), 0
		if len(b)%2 == 1 {
			b = append(b, 0)
		}
		for i := 0; i < len(b); i += 2 {
			s += int(b[i])<<8 | int(b[i+1])
		}
		return ^uint16(s % 0xffff)
	}
	l4, addrs := 34, f[26:34]
	if v6 {
		l4, addrs = 54, f[22:54]
	} else {
		be.PutUint16(f[24:], 0)
		be.PutUint16(f[24:], plain(f[14:34]))
	}
	be.PutUint16(f[l4+16:], 0)
	be.PutUint16(f[l4+16:], plain(f[l4:], addrs, []byte{0, 6, byte((len(f) - l4) >> 8), byte(len(f) - l4)}))
	return f
}

func twoNetdevs(t *testing.T) (a, b *netdev) {
	h := newHub()
	return newMachine(t, h, 1).newNetdev(), newMachine(t, h, 2).newNetdev()
}

func TestFrames(t *testing.T) {
	a, b := twoNetdevs(t)
	const both = ifc.EthWqeL3Csum | ifc.EthWqeL4Csum
	payload := bytes.Repeat([]byte("0123456789abcdef"), 40)
	buf := a.m.alloc(pageBytes)
	place := func(f []byte) []byte {
		copy(a.m.bytes(buf.addr[0], len(f)), f)
		return seg(len(f), a.key, buf.addr[0])
	}
	v4, v6 := tcpFrame(false, 0x10, payload), tcpFrame(true, 0x18, payload)
	bad := bytes.Clone(v4)
	bad[40]++ // the checksum does not fit
	taggedWant := slices.Concat(v4[:12], []byte{0x81, 0, 0x20, 7}, checked(v4, false)[12:])
	send := func(name string, want []byte, flags byte, segs ...[]byte) cqe {
		t.Helper()
		n := a.send(ifc.OpcodeSend, segs...)
		a.sendCQ.expect(cqeRequest, n, 0)
		got, e := b.receive()
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n% x, want\n% x", name, got, want)
		}
		if e[28] != flags {
			t.Errorf("%s: headers in order %#x, want %#x", name, e[28], flags)
		}
		if got, want := be.Uint16(e[20:]), roce.OnesSum(want[14:], 0); got != want {
			t.Errorf("%s: checksum %#x, want %#x", name, got, want)
		}
		return e
	}
	send("in memory", checked(v4, false), 7, ethSeg(0, 0, nil, 0), place(checked(v4, false)))
	e := send("checksums by the adapter", checked(v4, false), 7, ethSeg(both, 0, v4[:18], 0), place(v4[18:]))
	if e[29] != 4<<4|2<<2 {
		t.Errorf("types of headers %#x", e[29])
	}
	e = send("IPv6", checked(v6, true), 7, ethSeg(both, 0, v6[:60], 0), place(v6[60:]))
	if e[29] != 4<<4|1<<2 {
		t.Errorf("types of headers %#x", e[29])
	}
	send("wrong checksums", bad, 1, ethSeg(0, 0, nil, 0), place(bad))
	short := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06}, "arp"...)
	send("short, inline", append(bytes.Clone(short), make([]byte, 60-len(short))...), 1, ethSeg(0, 0, nil, 0), inlineSeg(short))

	// Tags are inserted, and taken out unless the driver wants them.
	n := a.send(ifc.OpcodeSend, ethSeg(both, 0, nil, 0x2007), place(v4))
	a.sendCQ.expect(cqeRequest, n, 0)
	got, e := b.receive()
	if !bytes.Equal(got, checked(v4, false)) || e[29]&1 == 0 || be.Uint16(e[30:]) != 0x2007 {
		t.Errorf("tagged: flags %#x, tag %#x\n% x", e[29], be.Uint16(e[30:]), got)
	}
	b.modifyRQ(stateReady, stateReady, 1<<1, true)
	a.send(ifc.OpcodeSend, ethSeg(both, 0, nil, 0x2007), place(v4))
	if got, e := b.receive(); !bytes.Equal(got, taggedWant) || e[29]&1 != 0 {
		t.Errorf("tagged and kept: flags %#x\n% x, want\n% x", e[29], got, taggedWant)
	}

	// Counters of both sides.
	out, _ := b.m.mustRun(ifc.OpQueryVportCounter, 0, nil)
	if n := ifc.TrafficCounterPackets.Get(ifc.QueryVportCounterOutReceivedEthUnicast.At(out)); n != 6 {
		t.Errorf("%d frames have been received, want 6", n)
	}
	if n := ifc.TrafficCounterPackets.Get(ifc.QueryVportCounterOutReceivedEthBroadcast.At(out)); n != 1 {
		t.Errorf("%d broadcasts have been received, want 1", n)
	}
	out, _ = a.m.mustRun(ifc.OpQueryVportCounter, 0, nil)
	if n := ifc.TrafficCounterPackets.Get(ifc.QueryVportCounterOutTransmittedEthUnicast.At(out)); n != 6 {
		t.Errorf("%d frames have been sent, want 6", n)
	}
}

func TestSegmentation(t *testing.T) {
	a, b := twoNetdevs(t)
	payload := make([]byte, 2500)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	buf := a.m.alloc(pageBytes)
	copy(a.m.bytes(buf.addr[0], len(payload)), payload)
	for _, v6 := range []bool{false, true} {
		head := len(tcpFrame(v6, 0, nil))
		n := a.send(ifc.OpcodeLso, ethSeg(ifc.EthWqeL3Csum|ifc.EthWqeL4Csum, 1000, tcpFrame(v6, 0x19, payload)[:head], 0), seg(len(payload), a.key, buf.addr[0]))
		for i := range 3 {
			flags := byte(0x10) // FIN and PSH are for the last
			if i == 2 {
				flags = 0x19
			}
			want := tcpFrame(v6, flags, payload[i*1000:min(len(payload), i*1000+1000)])
			be.PutUint32(want[head-16:], uint32(0x100+i*1000))
			if !v6 {
				be.PutUint16(want[18:], uint16(0x1234+i))
			}
			if got, e := b.receive(); !bytes.Equal(got, checked(want, v6)) || e[28] != 7 {
				t.Errorf("segment %d, IPv6 %v: headers in order %#x\n% x, want\n% x", i, v6, e[28], got[:head], checked(want, v6)[:head])
			}
		}
		a.sendCQ.expect(cqeRequest, n, 0)
	}
}

// TestBadFrames posts requests that a real adapter refuses. Each ends the queue, which is then
// reset.
func TestBadFrames(t *testing.T) {
	a, b := twoNetdevs(t)
	eth, buf := ethSeg(0, 0, nil, 0), a.m.alloc(pageBytes)
	frame := seg(100, a.key, buf.addr[0])
	ctrl := func(ds, qpn uint32, index uint16, op byte) []byte {
		w := make([]byte, 16)
		be.PutUint32(w, uint32(index)<<8|uint32(op))
		be.PutUint32(w[4:], qpn<<8|ds)
		return w
	}
	for name, post := range map[string]func(){
		"opcode":                func() { a.send(ifc.OpcodeRdmaWrite, eth, frame) },
		"no Ethernet segment":   func() { a.send(ifc.OpcodeSend) },
		"size zero":             func() { a.raw(ctrl(0, a.sqn, a.pi, ifc.OpcodeSend)) },
		"other queue":           func() { a.raw(slices.Concat(ctrl(3, a.sqn+1, a.pi, ifc.OpcodeSend), eth, frame)) },
		"other index":           func() { a.raw(slices.Concat(ctrl(3, a.sqn, a.pi+1, ifc.OpcodeSend), eth, frame)) },
		"key":                   func() { a.send(ifc.OpcodeSend, eth, seg(100, a.key+1, buf.addr[0])) },
		"key of other memory":   func() { a.send(ifc.OpcodeSend, eth, seg(100, a.m.key, buf.addr[0])) },
		"address":               func() { a.send(ifc.OpcodeSend, eth, seg(100, a.key, 1<<50)) },
		"too long":              func() { a.send(ifc.OpcodeSend, eth, seg(1<<20, a.key, buf.addr[0])) },
		"a byte too long":       func() { a.send(ifc.OpcodeSend, eth, seg(maxFrame+1, a.key, buf.addr[0])) },
		"inline beyond":         func() { a.send(ifc.OpcodeSend, eth, be.AppendUint32(nil, 1<<31|100), make([]byte, 12)) },
		"inline header beyond":  func() { a.send(ifc.OpcodeSend, append([]byte{12: 3, 13: 0xff}, 0, 0)) },
		"shorter than Ethernet": func() { a.send(ifc.OpcodeSend, eth, seg(13, a.key, buf.addr[0])) },
		"segments of nothing":   func() { a.send(ifc.OpcodeLso, ethSeg(0, 0, tcpFrame(false, 0, nil), 0), frame) },
		"segments of no TCP":    func() { a.send(ifc.OpcodeLso, ethSeg(0, 100, make([]byte, 54), 0), frame) },
		"segments beyond a frame": func() {
			a.send(ifc.OpcodeLso, ethSeg(0, maxFrame, tcpFrame(false, 0, nil), 0), seg(maxFrame, a.key, buf.addr[0]))
		},
		"header without its IP": func() { a.send(ifc.OpcodeLso, ethSeg(0, 1, tcpFrame(false, 0, nil)[:33], 0), frame) },
		"header without its tag": func() {
			a.send(ifc.OpcodeLso, ethSeg(0, 1, []byte{12: wire.TypeVLAN >> 8, 13: wire.TypeVLAN & 0xff}, 0), frame)
		},
		"header without all of TCP's": func() {
			f := tcpFrame(false, 0, nil)
			f[14], f[14+24+12] = 0x46, 0x40 // the IP header has options, for which TCP's is shorter
			a.send(ifc.OpcodeLso, ethSeg(0, 1, f, 0), frame)
		},
		"header behind data": func() { a.send(ifc.OpcodeLso, ethSeg(0, 1, append(tcpFrame(false, 0, nil), 0), 0), frame) },
	} {
		at := a.pi
		post()
		e := a.sendCQ.next()
		if e[cqeOpOwn]>>4 != cqeRequestError || be.Uint16(e[cqeCounter:]) != at || e[cqeSyndrome] != 2 {
			t.Errorf("%s: % x", name, e)
		}
		a.modifySQ(stateReady, stateReset, ifc.StatusBadResStateErr)
		a.modifySQ(stateError, stateReset, ifc.StatusOk)
		a.pi = 0
		be.PutUint32(a.sqRecord.at(4, 4), 0)
		a.modifySQ(stateReset, stateReady, ifc.StatusOk)
	}
	b.recvCQ.empty()
	for _, n := range []uint16{
		a.send(ifc.OpcodeNop), a.send(ifc.OpcodeSend, eth, seg(maxFrame, a.key, buf.addr[0])),
		a.send(ifc.OpcodeSend, eth, seg(13, a.key, buf.addr[0]), seg(0, a.key+1, 1<<50), seg(1, a.key, buf.addr[0])),
	} {
		a.sendCQ.expect(cqeRequest, n, 0)
	}
}

// FuzzFrames cuts what a guest may send into segments: nothing is lost, or it is refused.
func FuzzFrames(f *testing.F) {
	f.Add(tcpFrame(false, 0x10, []byte("data")), uint16(54), uint16(2))
	f.Add(tcpFrame(true, 0x18, []byte("data")), uint16(74), uint16(1))
	f.Add([]byte{12: wire.TypeVLAN >> 8, 13: wire.TypeVLAN & 0xff, 20: 0}, uint16(14), uint16(1))
	f.Fuzz(func(t *testing.T, frame []byte, header, mss uint16) {
		if len(frame) < wire.EtherSize {
			return
		}
		e := &ethernet{port: &port{}}
		if sent := len(frame) - int(header); e.segment(bytes.Clone(frame), int(header), int(mss)) && sent > 0 {
			packets, octets := sumOf(e.tx[:])
			if want := uint64((sent + int(mss) - 1) / int(mss)); packets != want || octets < uint64(sent)+want*uint64(header) {
				t.Errorf("%d bytes in segments of %d with headers of %d: %d frames of %d bytes, want %d", sent, mss, header, packets, octets, want)
			}
		}
	})
}

// FuzzNetdev has a guest that posts anything to its network function's queues, for frames that
// another receives in buffers of any sizes: each request completes.
func FuzzNetdev(f *testing.F) {
	const both = ifc.EthWqeL3Csum | ifc.EthWqeL4Csum
	f.Add(byte(ifc.OpcodeSend), byte(both), uint16(0), uint16(0), tcpFrame(false, 0x10, nil), uint16(1000), []byte(nil), []byte{64})
	f.Add(byte(ifc.OpcodeSend), byte(both), uint16(0), uint16(insertVLAN), []byte{0x20, 7}, uint16(100), inlineSeg([]byte("behind")), []byte{1, 2, 3, 255})
	f.Add(byte(ifc.OpcodeLso), byte(both), uint16(100), uint16(54), tcpFrame(false, 0x10, nil), uint16(1000), []byte(nil), []byte{0, 255, 255})
	f.Add(byte(ifc.OpcodeLso), byte(0), uint16(1), uint16(14), []byte{12: wire.TypeVLAN >> 8, 13: wire.TypeVLAN & 0xff}, uint16(2), []byte(nil), []byte{16})
	f.Fuzz(func(t *testing.T, op, flags byte, mss, size uint16, header []byte, length uint16, rest, receives []byte) {
		h := newHub()
		a, b := newMachine(t, h, 1).newNetdev(), newMachine(t, h, 2).newNetdev()
		for i := 0; i < len(receives)-1; i++ {
			n := i / 2 & (1<<netdevLog - 1)
			copy(b.rq.at(n*rqStride+i&1*16, 16), seg(int(receives[i]), b.key, b.data.addr[n]))
		}
		eth := ethSeg(flags, mss, header[:min(len(header), 256)], 0)
		be.PutUint16(eth[12:], size)
		a.put(a.request(op, ifc.WqeCtrlCqUpdate, eth, seg(int(length), a.key, a.data.addr[0]), append(rest[:min(len(rest), 512)], make([]byte, -min(len(rest), 512)&15)...)))
		a.m.dev.doorbell(a.m.uar, uarSend, be.AppendUint32(make([]byte, 4), a.sqn<<8))
		if e := a.sendCQ.next(); e[cqeOpOwn]>>4 == cqeRequest {
			n := a.send(ifc.OpcodeNop)
			a.sendCQ.expect(cqeRequest, n, 0)
		} else if e[cqeOpOwn]>>4 != cqeRequestError {
			t.Errorf("completion % x", e)
		}
		a.m.dev.doorbell(a.m.uar, uarSend, rest)
		b.m.dev.eth.receive([][]byte{append(bytes.Clone(header), make([]byte, wire.MinFrame)...)}) // the wire may take longer than the test
	})
}

// TestReceiveErrors receives what does not fit.
func TestReceiveErrors(t *testing.T) {
	a, b := twoNetdevs(t)
	buf := a.m.alloc(pageBytes)
	send := func(n int) { a.send(ifc.OpcodeSend, ethSeg(0, 0, nil, 0), seg(n, a.key, buf.addr[0])) }
	for range 1 << netdevLog {
		send(100)
		b.recvCQ.next() // and no receive posted again
	}
	send(100)
	labtest.Until(t, "a frame without a receive to be counted", func() bool { return b.m.dev.eth.noBuffer.Load() == 1 })
	b.post()
	send(receiveSize + 1)
	if e := b.recvCQ.next(); e[cqeOpOwn]>>4 != cqeReceiveError || e[cqeSyndrome] != 1 {
		t.Errorf("too long: % x", e)
	}
}

func TestNetworkObjects(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	n := m.newNetdev()
	expect := func(want ifc.Status, op uint16, num ifc.Field, v uint32) {
		t.Helper()
		if _, st := m.run(op, 0, func(in []byte) { num.Set(in, uint64(v)) }); st != want {
			t.Errorf("%s %#x: status %#x, want %#x", ifc.Layouts[op].Name, v, st, want)
		}
	}
	expect(ifc.StatusBadResStateErr, ifc.OpDestroyTis, ifc.DestroyTisInTisn, n.tis)
	expect(ifc.StatusBadResStateErr, ifc.OpDestroyRqt, ifc.DestroyRqtInRqtn, n.rqt)
	expect(ifc.StatusBadResErr, ifc.OpDestroyTir, ifc.DestroyTirInTirn, n.tir+100)
	expect(ifc.StatusOk, ifc.OpDestroyTir, ifc.DestroyTirInTirn, n.tir)
	expect(ifc.StatusOk, ifc.OpDestroyRqt, ifc.DestroyRqtInRqtn, n.rqt)
	expect(ifc.StatusOk, ifc.OpDestroySq, ifc.DestroySqInSqn, n.sqn)
	expect(ifc.StatusBadResErr, ifc.OpDestroySq, ifc.DestroySqInSqn, n.sqn)
	expect(ifc.StatusOk, ifc.OpDestroyTis, ifc.DestroyTisInTisn, n.tis)
	expect(ifc.StatusOk, ifc.OpDestroyRq, ifc.DestroyRqInRqn, n.rqn)
	expect(ifc.StatusBadResErr, ifc.OpModifyTis, ifc.ModifyTisInTisn, n.tis)
	if _, st := m.run(ifc.OpCreateTis, 0, nil); st != ifc.StatusBadResErr {
		t.Errorf("TIS without a transport domain: status %#x", st)
	}
}

// TestNoRawPackets refuses what mlx5_ib makes for a raw packet QP: a program has no transport
// domain.
func TestNoRawPackets(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	n := m.newNetdev()
	if _, st := m.run(ifc.OpAllocTransportDomain, 0, nil); st != ifc.StatusNoResErr {
		t.Errorf("a second transport domain: status %#x", st)
	}
	if _, st := m.run(ifc.OpCreateTis, 0, nil); st != ifc.StatusBadResErr {
		t.Errorf("TIS: status %#x", st)
	}
	if _, st := m.run(ifc.OpCreateTir, 0, func(in []byte) { ifc.TircInlineRqn.Set(ifc.CreateTirInCtx.At(in), uint64(n.rqn)) }); st != ifc.StatusBadResErr {
		t.Errorf("TIR: status %#x", st)
	}
}

// TestModifyRQT makes a table larger than it may be.
func TestModifyRQT(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	n := m.newNetdev()
	modify := func(size int) ifc.Status {
		_, st := m.run(ifc.OpModifyRqt, 0, func(in []byte) {
			ifc.ModifyRqtInRqtn.Set(in, uint64(n.rqt))
			ifc.RqtcRqtActualSize.Set(ifc.ModifyRqtInCtx.At(in), uint64(size))
		}, bytes.Repeat(be.AppendUint32(nil, n.rqn), size)...)
		return st
	}
	for size, want := range map[int]ifc.Status{1: ifc.StatusOk, 2: ifc.StatusBadParamErr, 1<<16 - 1: ifc.StatusBadParamErr} {
		if st := modify(size); st != want {
			t.Errorf("%d queues in a table of at most 1: status %#x, want %#x", size, st, want)
		}
	}
}

// TestFlowLimits fills tables with entries, and one with groups.
func TestFlowLimits(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	var table uint64
	groups, entries := 0, 0
	group := func(first, last uint64) (num uint64, st ifc.Status) {
		out, st := m.run(ifc.OpCreateFlowGroup, 0, func(in []byte) {
			ifc.CreateFlowGroupInTableId.Set(in, table)
			ifc.CreateFlowGroupInStartFlowIndex.Set(in, first)
			ifc.CreateFlowGroupInEndFlowIndex.Set(in, last)
		})
		if st == ifc.StatusOk {
			groups++
		}
		return ifc.CreateFlowGroupOutGroupId.Get(out), st
	}
	for range maxFlowEntries>>logFlows + 1 {
		out, _ := m.mustRun(ifc.OpCreateFlowTable, 0, func(in []byte) {
			ifc.FlowTableContextLogSize.Set(ifc.CreateFlowTableInFlowTableContext.At(in), logTableSize)
		})
		table = ifc.CreateFlowTableOutTableId.Get(out)
		num, st := group(0, 1<<logFlows)
		for i := uint64(0); st == ifc.StatusOk; i++ {
			_, st = m.run(ifc.OpSetFlowTableEntry, 0, func(in []byte) {
				ifc.SetFteInTableId.Set(in, table)
				ifc.SetFteInFlowIndex.Set(in, i)
				ifc.FlowContextGroupId.Set(ifc.SetFteInFlowContext.At(in), num)
				ifc.FlowContextAction.Set(ifc.SetFteInFlowContext.At(in), 1)
			})
			if st == ifc.StatusOk {
				entries++
			} else if st != ifc.StatusNoResErr || i > 1<<logFlows {
				t.Fatalf("entry %d: status %#x", i, st)
			}
		}
	}
	if entries != maxFlowEntries {
		t.Errorf("%d entries in all tables, want %d", entries, maxFlowEntries)
	}
	st := ifc.StatusOk
	for i := uint64(1<<logFlows + 1); st == ifc.StatusOk; i++ {
		_, st = group(i, i)
	}
	if groups != maxFlowGroups || st != ifc.StatusNoResErr {
		t.Errorf("group %d: status %#x", groups+1, st)
	}
}

// FuzzFlow sets an entry of a flow table with any actions: it is one of the group, and its list is as long as
// it says.
func FuzzFlow(f *testing.F) {
	f.Add(uint64(0), uint16(8), uint8(0), uint8(1), []byte{3: 1, 7: 0})
	f.Add(uint64(3), uint16(4), uint8(1), uint8(0), []byte{0: 1, 3: 1, 7: 0})
	f.Add(uint64(4), uint16(12), uint8(1), uint8(1), []byte{0: 2, 3: 9, 7: 0})
	f.Fuzz(func(t *testing.T, index uint64, action uint16, to, counters uint8, list []byte) {
		m := newMachine(t, newHub(), 1)
		m.mustRun(ifc.OpAllocFlowCounter, 0, nil)
		out, _ := m.mustRun(ifc.OpCreateFlowTable, 0, func(in []byte) { ifc.FlowTableContextLogSize.Set(ifc.CreateFlowTableInFlowTableContext.At(in), 3) })
		table := ifc.CreateFlowTableOutTableId.Get(out)
		out, _ = m.mustRun(ifc.OpCreateFlowGroup, 0, func(in []byte) {
			ifc.CreateFlowGroupInTableId.Set(in, table)
			ifc.CreateFlowGroupInEndFlowIndex.Set(in, 3)
		})
		_, st := m.run(ifc.OpSetFlowTableEntry, 0, func(in []byte) {
			ifc.SetFteInTableId.Set(in, table)
			ifc.SetFteInFlowIndex.Set(in, index&0xffffffff)
			ctx := ifc.SetFteInFlowContext.At(in)
			ifc.FlowContextGroupId.Set(ctx, ifc.CreateFlowGroupOutGroupId.Get(out))
			ifc.FlowContextAction.Set(ctx, uint64(action))
			ifc.FlowContextDestinationListSize.Set(ctx, uint64(to))
			ifc.FlowContextFlowCounterListSize.Set(ctx, uint64(counters))
		}, list[:min(len(list), 4096)]...)
		if st == ifc.StatusOk && (index&0xffffffff > 3 || int(to)+int(counters) > len(list)/ifc.DestFormatSize) {
			t.Errorf("entry %d with %d destinations and %d counters in %d bytes", index, to, counters, len(list))
		}
	})
}

func TestFlowTables(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	out, _ := m.mustRun(ifc.OpCreateFlowTable, 0, func(in []byte) { ifc.FlowTableContextLogSize.Set(ifc.CreateFlowTableInFlowTableContext.At(in), 3) })
	table := ifc.CreateFlowTableOutTableId.U32(out)
	for name, c := range map[string]struct {
		fill func(in []byte)
		want ifc.Status
	}{
		"of receives":     {func(in []byte) { ifc.CreateFlowTableInTableType.Set(in, tableNICReceive) }, ifc.StatusOk},
		"of sends":        {func(in []byte) { ifc.CreateFlowTableInTableType.Set(in, tableNICTransmit) }, ifc.StatusOk},
		"of another type": {func(in []byte) { ifc.CreateFlowTableInTableType.Set(in, 2) }, ifc.StatusBadParamErr},
		"too large": {func(in []byte) {
			ifc.FlowTableContextLogSize.Set(ifc.CreateFlowTableInFlowTableContext.At(in), logTableSize+1)
		}, ifc.StatusBadParamErr},
		"of another function": {func(in []byte) { ifc.CreateFlowTableInOtherVport.Set(in, 1) }, ifc.StatusBadParamErr},
	} {
		if _, st := m.run(ifc.OpCreateFlowTable, 0, c.fill); st != c.want {
			t.Errorf("table %s: status %#x, want %#x", name, st, c.want)
		}
	}
	group := func(first, last uint64) (uint32, ifc.Status) {
		out, st := m.run(ifc.OpCreateFlowGroup, 0, func(in []byte) {
			ifc.CreateFlowGroupInTableId.Set(in, uint64(table))
			ifc.CreateFlowGroupInStartFlowIndex.Set(in, first)
			ifc.CreateFlowGroupInEndFlowIndex.Set(in, last)
		})
		return ifc.CreateFlowGroupOutGroupId.U32(out), st
	}
	g, st := group(0, 3)
	if st != ifc.StatusOk {
		t.Fatalf("group: status %#x", st)
	}
	for _, c := range [][2]uint64{{3, 4}, {5, 4}, {4, 8}} {
		if _, st := group(c[0], c[1]); st != ifc.StatusBadParamErr {
			t.Errorf("group %d to %d: status %#x", c[0], c[1], st)
		}
	}
	n := m.newNetdev()
	out, _ = m.mustRun(ifc.OpAllocFlowCounter, 0, nil)
	counter := ifc.AllocFlowCounterOutFlowCounterId.U32(out)
	actions := func(index uint64, group, action uint32, to, counters int, list ...uint32) ifc.Status {
		var b []byte
		for _, v := range list {
			b = append(be.AppendUint32(b, v), 0, 0, 0, 0)
		}
		_, st := m.run(ifc.OpSetFlowTableEntry, 0, func(in []byte) {
			ifc.SetFteInTableId.Set(in, uint64(table))
			ifc.SetFteInFlowIndex.Set(in, index)
			ctx := ifc.SetFteInFlowContext.At(in)
			ifc.FlowContextGroupId.Set(ctx, uint64(group))
			ifc.FlowContextAction.Set(ctx, uint64(action))
			ifc.FlowContextDestinationListSize.Set(ctx, uint64(to))
			ifc.FlowContextFlowCounterListSize.Set(ctx, uint64(counters))
		}, b...)
		return st
	}
	entry := func(index uint64, group uint32) ifc.Status { return actions(index, group, 1, 0, 0) }
	destroyGroup := func() ifc.Status {
		_, st := m.run(ifc.OpDestroyFlowGroup, 0, func(in []byte) {
			ifc.DestroyFlowGroupInTableId.Set(in, uint64(table))
			ifc.DestroyFlowGroupInGroupId.Set(in, uint64(g))
		})
		return st
	}
	destroyTable := func() ifc.Status {
		_, st := m.run(ifc.OpDestroyFlowTable, 0, func(in []byte) { ifc.DestroyFlowTableInTableId.Set(in, uint64(table)) })
		return st
	}
	deleteEntry := func() ifc.Status {
		_, st := m.run(ifc.OpDeleteFlowTableEntry, 0, func(in []byte) {
			ifc.DeleteFteInTableId.Set(in, uint64(table))
			ifc.DeleteFteInFlowIndex.Set(in, 2)
		})
		return st
	}
	for _, c := range []struct {
		name      string
		got, want ifc.Status
	}{
		{"entry outside of its group", entry(4, g), ifc.StatusBadParamErr},
		{"entry of no group", entry(2, g+1), ifc.StatusBadResErr},
		{"entry to a TIR, a table and a counter", actions(2, g, 4|8, 2, 1, 2<<24|n.tir, 1<<24|table, counter), ifc.StatusOk},
		{"entry to no TIR", actions(2, g, 4, 1, 0, 2<<24|n.tir+100), ifc.StatusBadResErr},
		{"entry to no table", actions(2, g, 4, 1, 0, 1<<24|table+100), ifc.StatusBadResErr},
		{"entry to no counter", actions(2, g, 8, 0, 1, counter+100), ifc.StatusBadResErr},
		{"entry to a vport", actions(2, g, 4, 1, 0, 0), ifc.StatusBadParamErr},
		{"destinations without the action", actions(2, g, 1, 1, 0, 2<<24|n.tir), ifc.StatusBadParamErr},
		{"counters without the action", actions(2, g, 1, 0, 1, counter), ifc.StatusBadParamErr},
		{"decapsulation", actions(2, g, 0x20, 0, 0), ifc.StatusBadParamErr},
		{"destinations behind the end", actions(2, g, 4, 2, 0, 2<<24|n.tir), ifc.StatusBadInpLenErr},
		{"entry", entry(2, g), ifc.StatusOk},
		{"table with groups", destroyTable(), ifc.StatusBadResStateErr},
		{"group with entries", destroyGroup(), ifc.StatusBadResStateErr},
		{"delete entry", deleteEntry(), ifc.StatusOk},
		{"delete it again", deleteEntry(), ifc.StatusBadResErr},
		{"group", destroyGroup(), ifc.StatusOk},
		{"group again", destroyGroup(), ifc.StatusBadResErr},
		{"table", destroyTable(), ifc.StatusOk},
		{"table again", destroyTable(), ifc.StatusBadResErr},
	} {
		if c.got != c.want {
			t.Errorf("%s: status %#x, want %#x", c.name, c.got, c.want)
		}
	}
}

//go:build linux

package connectx

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

const update = ifc.WqeCtrlCqUpdate

func fillPattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// TestSendRequests executes requests of all kinds and compares both entries, byte by byte, and the
// memory.
func TestSendRequests(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x, y := pair(m, m, ifc.QpTypeRc)
	src, dst := m.next, m.next+pageBytes
	m.next += 2 * pageBytes
	data, got := m.bytes(src, pageBytes), m.bytes(dst, pageBytes)
	sge := func(off, n int) []byte { return seg(n, m.key, src+uint64(off)) }
	at := func(off int) []byte { return remoteSeg(dst+uint64(off), m.key) }
	long := make([]byte, 972) // with 16 bytes of control and 16 of remote address: a WQE of 1008 bytes
	fillPattern(long, 5)
	for _, tt := range []struct {
		name    string
		opcode  byte
		flags   byte
		imm     uint32
		segs    [][]byte
		recvOp  byte // 0: takes no receive
		size    uint32
		sendLen uint32
		check   func() bool
	}{
		{"SEND", ifc.OpcodeSend, update, 0, [][]byte{sge(0, 100)}, cqeSend, 100, 100, func() bool { return bytes.Equal(got[:100], data[:100]) }},
		{"SEND of nothing", ifc.OpcodeSend, update, 0, nil, cqeSend, 0, 0, nil},
		{"SEND with immediate", ifc.OpcodeSendImm, update | ifc.WqeCtrlSolicited, 0x12345678, [][]byte{sge(1, 7), sge(50, 60)}, cqeSendImm, 67, 67, func() bool {
			return bytes.Equal(got[:7], data[1:8]) && bytes.Equal(got[7:67], data[50:110])
		}},
		{"SEND of inline data", ifc.OpcodeSend, update, 0, [][]byte{inlineSeg([]byte("inline data"))}, cqeSend, 11, 11, func() bool { return string(got[:11]) == "inline data" }},
		{"SEND of 972 inline bytes", ifc.OpcodeSend, update, 0, [][]byte{inlineSeg(long)}, cqeSend, 972, 972, func() bool { return bytes.Equal(got[:972], long) }},
		{"WRITE", ifc.OpcodeRdmaWrite, update, 0, [][]byte{at(5), sge(3, 2000)}, 0, 0, 2000, func() bool { return bytes.Equal(got[5:2005], data[3:2003]) }},
		{"WRITE of 972 inline bytes", ifc.OpcodeRdmaWrite, update, 0, [][]byte{at(100), inlineSeg(long)}, 0, 0, 972, func() bool { return bytes.Equal(got[100:1072], long) }},
		{"WRITE with immediate", ifc.OpcodeRdmaWriteImm, update, 9, [][]byte{at(0), sge(0, 4000)}, cqeWriteImm, 4000, 4000, func() bool { return bytes.Equal(got[:4000], data[:4000]) }},
		{"READ", ifc.OpcodeRdmaRead, update | ifc.FenceFence, 0, [][]byte{remoteSeg(src, m.key), seg(10, m.key, dst), seg(3000, m.key, dst+50)}, 0, 0, 3010, func() bool {
			return bytes.Equal(got[:10], data[:10]) && bytes.Equal(got[50:3050], data[10:3010])
		}},
		{"compare and swap", ifc.OpcodeAtomicCs, update, 0, [][]byte{at(0), be.AppendUint64(be.AppendUint64(nil, 77), 0), seg(8, m.key, dst+8)}, 0, 0, 8, func() bool {
			return le.Uint64(got) == 77 && le.Uint64(got[8:]) == 0
		}},
		{"fetch and add", ifc.OpcodeAtomicFa, update, 0, [][]byte{at(0), be.AppendUint64(be.AppendUint64(nil, 3), 0), seg(8, m.key, dst+8)}, 0, 0, 8, func() bool {
			return le.Uint64(got) == 3 && le.Uint64(got[8:]) == 0
		}},
		{"NOP", ifc.OpcodeNop, update, 0, nil, 0, 0, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m.t, x.m.t = t, t
			defer func(t testing.TB) { m.t = t }(m.t)
			fillPattern(data, len(tt.name))
			clear(got)
			if tt.recvOp != 0 {
				y.postRecv(seg(50, m.key, dst), seg(4000, m.key, dst+50))
			}
			counter := x.pi
			x.post(tt.opcode, tt.flags, tt.imm, tt.segs...)
			e := x.send.expect(cqeRequest, counter, 0)
			var want cqe
			be.PutUint32(want[cqeUserIndex:], 0x1234)
			be.PutUint32(want[cqeByteCount:], tt.sendLen)
			copy(want[cqeTime:cqeTime+8], e[cqeTime:])
			be.PutUint32(want[cqeOpQPN:], uint32(tt.opcode)<<24|x.num)
			be.PutUint16(want[cqeCounter:], counter)
			want[cqeOpOwn] = cqeRequest<<4 | byte((x.send.ci-1)>>6&1)
			if e != want {
				t.Errorf("entry of the request\n% x, want\n% x", e, want)
			}
			if tt.recvOp != 0 {
				e := y.recv.expect(tt.recvOp, y.rpi-1, 0)
				var want cqe
				be.PutUint32(want[cqeFlagsRQPN:], 1<<28|ifc.CqeRoceL3HeaderTypeIpv4<<24)
				be.PutUint32(want[cqeUserIndex:], 0x1234)
				be.PutUint32(want[cqeImm:], tt.imm)
				be.PutUint32(want[cqeByteCount:], tt.size)
				copy(want[cqeTime:cqeTime+8], e[cqeTime:])
				be.PutUint32(want[cqeOpQPN:], y.num)
				be.PutUint16(want[cqeCounter:], y.rpi-1)
				want[cqeOpOwn] = tt.recvOp<<4 | byte((y.recv.ci-1)>>6&1)
				if tt.flags&ifc.WqeCtrlSolicited != 0 {
					want[cqeOpOwn] |= 2
				}
				if e != want {
					t.Errorf("entry of the receive\n% x, want\n% x", e, want)
				}
			}
			if tt.check != nil && !tt.check() {
				t.Errorf("memory % x...", got[:64])
			}
		})
	}
	// Without CQ_UPDATE there is no entry.
	x.put(ifc.OpcodeRdmaWrite, 0, 0, at(0), sge(0, 8))
	counter := x.pi
	x.post(ifc.OpcodeNop, update, 0)
	x.send.expect(cqeRequest, counter, 0)
	x.send.empty()
	y.recv.empty()
}

// TestBadSendRequests posts what hardware refuses, each to a new pair, with a request behind it
// that is flushed.
func TestBadSendRequests(t *testing.T) {
	const (
		lenErr, opErr, protErr, flushErr = 0x01, 0x02, 0x04, 0x05
		invReq, access, remOp            = 0x12, 0x13, 0x14
	)
	for _, tt := range []struct {
		name     string
		st       int
		post     func(x *testQP, m *machine)
		syndrome byte
		peer     byte // syndrome of the peer's receive; 0: none
	}{
		{"opcode", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(0x3f, 0, 0) }, opErr, 0},
		{"LSO", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeLso, 0, 0) }, opErr, 0},
		{"modifier", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0); x.ctrl()[0] = 1 }, opErr, 0},
		{"index", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0); x.ctrl()[2]++ }, opErr, 0},
		{"QP", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0); x.ctrl()[6]++ }, opErr, 0},
		{"reserved bits of the size", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0); x.ctrl()[7] |= 0x80 }, opErr, 0},
		{"reserved flags", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 1, 0) }, opErr, 0},
		{"half a remote address", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeRdmaWrite, 0, 0) }, opErr, 0},
		{"half an atomic", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeAtomicFa, 0, 0, remoteSeg(base, m.key)) }, opErr, 0},
		{"atomic of 4 bytes", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeAtomicFa, 0, 0, remoteSeg(base, m.key), make([]byte, 16), seg(4, m.key, base))
		}, opErr, 0},
		{"inline data beyond the request", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeSend, 0, 0, be.AppendUint32(nil, 13|inlineBit), make([]byte, 12))
		}, opErr, 0},
		{"inline READ", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeRdmaRead, 0, 0, remoteSeg(base, m.key), inlineSeg(make([]byte, 8)))
		}, opErr, 0},
		{"READ on UC", ifc.QpTypeUc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeRdmaRead, 0, 0, remoteSeg(base, m.key), seg(8, m.key, base))
		}, opErr, 0},
		{"local key", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0, seg(8, m.key^1, base)) }, protErr, 0},
		{"local address", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeSend, 0, 0, seg(8, m.key, base+uint64(len(m.mem))-7))
		}, protErr, 0},
		{"length of 0, which means 2 GiB", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeSend, 0, 0, seg(0, m.key, base+uint64(len(m.mem))-8))
		}, protErr, 0},
		{"remote key", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(base, m.key^1), seg(8, m.key, base))
		}, access, 0},
		{"remote address", ifc.QpTypeRc, func(x *testQP, m *machine) {
			x.put(ifc.OpcodeRdmaRead, 0, 0, remoteSeg(base-1, m.key), seg(8, m.key, base))
		}, access, 0},
		{"message longer than the receive", ifc.QpTypeRc, func(x *testQP, m *machine) { x.put(ifc.OpcodeSend, 0, 0, seg(101, m.key, base)) }, invReq, lenErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, newHub(), 1)
			x, y := pair(m, m, tt.st)
			if tt.peer != 0 {
				y.postRecv(seg(100, m.key, base))
			}
			tt.post(x, m)
			next := x.pi
			x.post(ifc.OpcodeSend, 0, 0)
			e := x.send.expect(cqeRequestError, 0, tt.syndrome)
			if n := be.Uint32(e[cqeOpQPN:]) & indexMask; n != x.num {
				t.Errorf("error of QP %#x", n)
			}
			x.send.expect(cqeRequestError, next, flushErr)
			if tt.peer != 0 {
				y.recv.expect(cqeReceiveError, 0, tt.peer)
			}
			want := ifc.QpStateErr
			if tt.st == ifc.QpTypeUc {
				want = ifc.QpStateSqer
			}
			if _, qpc := x.query(); ifc.QpcState.Int(qpc) != want {
				t.Errorf("state %d, want %d", ifc.QpcState.Int(qpc), want)
			}
		})
	}
	t.Run("size 0", func(t *testing.T) { // what follows cannot be found
		m := newMachine(t, newHub(), 1)
		x, _ := pair(m, m, ifc.QpTypeRc)
		x.put(ifc.OpcodeSend, 0, 0)
		x.ctrl()[7] = 0
		x.post(ifc.OpcodeSend, 0, 0)
		x.send.expect(cqeRequestError, 0, opErr)
		x.send.empty()
	})
	t.Run("size beyond what is posted", func(t *testing.T) {
		m := newMachine(t, newHub(), 1)
		x, _ := pair(m, m, ifc.QpTypeRc)
		x.put(ifc.OpcodeSend, 0, 0)
		x.ctrl()[7] = 5
		x.ring()
		x.send.expect(cqeRequestError, 0, opErr)
	})
	t.Run("more than the queue holds", func(t *testing.T) {
		m := newMachine(t, newHub(), 1)
		x, _ := pair(m, m, ifc.QpTypeRc)
		x.put(ifc.OpcodeNop, update, 0)
		x.pi += 16
		x.ring()
		x.send.expect(cqeRequestError, 0, opErr)
		x.send.empty()
	})
}

// TestReasonsOfMalformedRequests reads from the record what the syndrome does not tell.
func TestReasonsOfMalformedRequests(t *testing.T) {
	var reason atomic.Value // of the last refusal
	m := newMachine(t, newHub(), 1, lastRefusal(&reason))
	send := func(change func(ctrl []byte)) func(*testQP) {
		return func(x *testQP) {
			x.put(ifc.OpcodeSend, 0, 0)
			change(x.ctrl())
		}
	}
	segs := func(opcode byte, segs ...[]byte) func(*testQP) {
		return func(x *testQP) { x.put(opcode, 0, 0, segs...) }
	}
	data, inline := seg(8, m.key, base), inlineSeg(make([]byte, 8))
	for _, tt := range []struct {
		want string
		st   int
		put  func(*testQP)
	}{
		{"unknown opcode", ifc.QpTypeRc, segs(0x3f)},
		{"opcode modifier", ifc.QpTypeRc, send(func(c []byte) { c[0] = 1 })},
		{"the control segment has another index", ifc.QpTypeRc, send(func(c []byte) { c[2]++ })},
		{"the control segment names another QP", ifc.QpTypeRc, send(func(c []byte) { c[6]++ })},
		{"reserved bits of the control segment", ifc.QpTypeRc, send(func(c []byte) { c[7] |= 0x80 })},
		{"reserved bits of the control segment", ifc.QpTypeRc, send(func(c []byte) { c[ctrlFlags] = 4 })},
		{"the size is 0, or more than the guest has posted", ifc.QpTypeRc, send(func(c []byte) { c[7] = 0 })},
		{"the size is 0, or more than the guest has posted", ifc.QpTypeRc, send(func(c []byte) { c[7] = 5 })},
		{"the request ends within a segment", ifc.QpTypeRc, segs(ifc.OpcodeRdmaWrite)},
		{"the request ends within a segment", ifc.QpTypeRc, segs(ifc.OpcodeAtomicFa, remoteSeg(base, m.key))},
		{"the request ends within a segment", ifc.QpTypeUd, segs(ifc.OpcodeSend, make([]byte, avSize-segment))},
		{"the opcode is not for a UD QP", ifc.QpTypeUd, segs(ifc.OpcodeRdmaWrite, remoteSeg(base, m.key), data)},
		{"the address vector leads nowhere", ifc.QpTypeDci, segs(ifc.OpcodeSend, make([]byte, avSize), data)},
		{"the address vector leads nowhere", ifc.QpTypeUd, segs(ifc.OpcodeSend, make([]byte, avSize), data)},
		{"inline data is longer than the request", ifc.QpTypeRc, segs(ifc.OpcodeSend, be.AppendUint32(nil, 13|inlineBit), make([]byte, 12))},
		{"another segment behind inline data", ifc.QpTypeRc, segs(ifc.OpcodeSend, inline, data)},
		{"inline data behind another segment", ifc.QpTypeRc, segs(ifc.OpcodeSend, data, inline)},
	} {
		reason.Store("none")
		x := m.createQP(tt.st, m.createCQ(6, 64), m.createCQ(6, 64))
		if tt.st == ifc.QpTypeDci {
			x.connectDCI()
		} else {
			x.connect(x.num, m.addr())
		}
		tt.put(x)
		x.ring()
		x.send.expect(cqeRequestError, 0, opErr)
		if got := reason.Load(); got != tt.want {
			t.Errorf("the reason is %q, want %q", got, tt.want)
		}
	}
}

// TestSendQueueErrorState fails a request of QPs without acknowledgements, and goes on behind it.
func TestSendQueueErrorState(t *testing.T) {
	for _, st := range []int{ifc.QpTypeUc, ifc.QpTypeUd} {
		m := newMachine(t, newHub(), 1)
		x, y := pair(m, m, st)
		av := vector(y.num, m.addr())
		if st == ifc.QpTypeUc {
			av = nil
		}
		state := func(want int) {
			t.Helper()
			if _, qpc := x.query(); ifc.QpcState.Int(qpc) != want {
				t.Errorf("type %d: state %d, want %d", st, ifc.QpcState.Int(qpc), want)
			}
		}
		if st := x.modify(ifc.OpSqerr2rtsQp, nil); st != ifc.StatusBadQpStateErr {
			t.Errorf("SQERR2RTS in RTS: status %#x", st)
		}
		for i := range uint16(3) { // around the ring
			bad := x.pi
			x.post(ifc.OpcodeSend, 0, 0, av, seg(8, m.key^1, base))
			x.send.expect(cqeRequestError, bad, 0x04)
			state(ifc.QpStateSqer)
			flushed := x.pi
			x.post(ifc.OpcodeSend, 0, 0, av, seg(8, m.key, base))
			x.send.expect(cqeRequestError, flushed, 0x05)
			x.mustModify(ifc.OpSqerr2rtsQp, func(in, ctx []byte) {
				if st == ifc.QpTypeUd {
					ifc.Rst2initQpInOptParamMask.Set(in, ifc.OptparQKey)
					ifc.QpcQKey.Set(ctx, testQKey)
				}
			})
			state(ifc.QpStateRts)
			y.postRecv(seg(100, m.key, base))
			good := x.pi
			x.post(ifc.OpcodeSend, update, 0, av, seg(8, m.key, base))
			x.send.expect(cqeRequest, good, 0)
			y.recv.expect(cqeSend, i, 0)
		}
	}
}

// ctrl returns the control segment of the last request, of one block.
func (q *testQP) ctrl() []byte {
	return q.mem.at(testStride<<q.logRecv+int(q.pi-1)&(1<<q.logSend-1)*sendBlock, 16)
}

func (q *testQP) query() (out, qpc []byte) {
	q.m.t.Helper()
	out, _ = q.m.mustRun(ifc.OpQueryQp, 0, func(in []byte) { ifc.QueryQpInQpn.Set(in, uint64(q.num)) })
	return out, ifc.QueryQpOutQpc.At(out)
}

func TestRequestsGoAroundTheRing(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x, y := pair(m, m, ifc.QpTypeRc)
	buf := m.next
	m.next += pageBytes
	for i := range 100 { // sizes of 1 to 5 blocks, at each place of the ring
		data := make([]byte, i*3)
		fillPattern(data, i)
		y.postRecv(seg(pageBytes, m.key, buf))
		counter := x.pi
		x.post(ifc.OpcodeSend, update, 0, inlineSeg(data))
		x.send.expect(cqeRequest, counter, 0)
		if e := y.recv.expect(cqeSend, uint16(i), 0); be.Uint32(e[cqeByteCount:]) != uint32(len(data)) || !bytes.Equal(m.bytes(buf, len(data)), data) {
			t.Fatalf("message %d of %d bytes: entry % x", i, len(data), e)
		}
	}
}

func TestDatagrams(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, st := range []int{ifc.QpTypeUd, ifc.QpTypeQp1} {
			t.Run(fmt.Sprintf("type %d IPv6 %v", st, six), func(t *testing.T) {
				h := newHub()
				a, b := newMachine(t, h, 1), newMachine(t, h, 2)
				l3 := uint32(ifc.CqeRoceL3HeaderTypeIpv4)
				index := 0
				to := b.addr()
				if six {
					l3, index = ifc.CqeRoceL3HeaderTypeIpv6, 5
					a.setAddress(5, netip.MustParseAddr("fd00::1"))
					to = netip.MustParseAddr("fd00::2")
					b.setAddress(7, to)
				}
				x, y := a.createQP(st, a.createCQ(4, 64), a.createCQ(4, 64)), b.createQP(st, b.createCQ(4, 64), b.createCQ(4, 64))
				x.connect(0, to)
				y.connect(0, a.addr())
				buf := b.next
				y.postRecv(seg(200, b.key, buf))
				av := vector(y.num, to)
				if st == ifc.QpTypeQp1 {
					be.PutUint32(av[avQKey:], 1<<31) // the QP's own
				}
				av[avTClass], av[avHops] = 0x40, 64
				be.PutUint32(av[avGRHFlow:], 1<<30|uint32(index)<<20)
				x.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("datagram")))
				x.send.expect(cqeRequest, 0, 0)
				e := y.recv.expect(cqeSend, 0, 0)
				if flags := be.Uint32(e[cqeFlagsRQPN:]); flags != 1<<28|l3<<24|x.num {
					t.Errorf("flags %#x", flags)
				}
				if n := be.Uint32(e[cqeByteCount:]); n != 48 || string(b.bytes(buf+40, 8)) != "datagram" {
					t.Errorf("%d bytes, %q", n, b.bytes(buf+40, 8))
				}
				if pkey := be.Uint32(e[cqeImm:]); st == ifc.QpTypeQp1 && (pkey != defaultPKey || y.num != 1) {
					t.Errorf("QP %d: P_Key %#x", y.num, pkey)
				}
				// The GID goes, and with it the path that is kept.
				a.setAddress(index, netip.Addr{})
				counter := x.pi
				x.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("datagram")))
				x.send.expect(cqeRequestError, counter, 0x02)
			})
		}
	}
}

// TestDatagramAddress sends datagrams with another Q_Key than the receiver's, which drops it, and with address vectors
// that are short or name no QP, which the sender refuses.
func TestDatagramAddress(t *testing.T) {
	for _, flags := range []uint32{0, extendedAV | 1<<24} {
		m := newMachine(t, newHub(), 1)
		q := m.createQP(ifc.QpTypeUd, m.createCQ(4, 64), m.createCQ(4, 64))
		q.connect(0, m.addr())
		q.postRecv(seg(200, m.key, m.next))
		send := func(qkey, qpn uint32, data string) (counter uint16) {
			av := vector(q.num, m.addr())
			be.PutUint32(av[avQKey:], qkey)
			be.PutUint32(av[avQPN:], qpn)
			counter = q.pi
			q.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte(data)))
			return counter
		}
		q.send.expect(cqeRequest, send(testQKey+1, extendedAV|q.num, "dropped"), 0)
		q.send.expect(cqeRequest, send(testQKey, extendedAV|q.num, "received"), 0)
		q.recv.expect(cqeSend, 0, 0)
		if got := m.bytes(m.next+40, 8); string(got) != "received" {
			t.Errorf("received %q", got)
		}
		q.send.expect(cqeRequestError, send(testQKey, flags|q.num, "refused"), 0x02)
	}
}

func TestDatagramsToAGroup(t *testing.T) {
	t.Run("RoCE", func(t *testing.T) { datagramsToAGroup(t, false, "239.1.1.1") })
	t.Run("InfiniBand", func(t *testing.T) { datagramsToAGroup(t, true, "ff12:401b:ffff::1") })
}

func datagramsToAGroup(t *testing.T, infiniBand bool, addr string) {
	h := newHub()
	ib := func(c *Config) { c.InfiniBand = infiniBand }
	a, b := newMachine(t, h, 1, ib), newMachine(t, h, 2, ib)
	x, y := a.createQP(ifc.QpTypeUd, a.createCQ(4, 64), a.createCQ(4, 64)), b.createQP(ifc.QpTypeUd, b.createCQ(4, 64), b.createCQ(4, 64))
	x.connect(0, b.addr())
	y.connect(0, a.addr())
	group := netip.MustParseAddr(addr).As16()
	attach := func(op uint16) ifc.Status {
		_, st := b.run(op, 0, func(in []byte) {
			ifc.AttachToMcgInQpn.Set(in, uint64(y.num))
			copy(ifc.AttachToMcgInMulticastGid.At(in), group[:])
		})
		return st
	}
	if st := attach(ifc.OpAttachToMcg); st != ifc.StatusOk {
		t.Fatalf("attach: status %#x", st)
	}
	buf := b.next
	y.postRecv(seg(200, b.key, buf))
	av := vector(0xffffff, netip.AddrFrom16(group))
	be.PutUint16(av[avLID:], 0xc001)
	x.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("all")))
	y.recv.expect(cqeSend, 0, 0)
	if st := attach(ifc.OpDetachFromMcg); st != ifc.StatusOk {
		t.Errorf("detach: status %#x", st)
	}
	if st := attach(ifc.OpDetachFromMcg); st != ifc.StatusBadParamErr {
		t.Errorf("detach again: status %#x", st)
	}
	attach(ifc.OpAttachToMcg) // destroyed with the QP
	b.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(y.num)) })
}

func TestReceivesPostedToAFailedQPAreFlushed(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x, y := pair(m, m, ifc.QpTypeRc)
	y.postRecv()
	y.mustModify(ifc.Op2errQp, nil)
	y.recv.expect(cqeReceiveError, 0, 0x05)
	for i := range uint16(3) { // nothing tells the device
		y.postRecv(seg(8, m.key, base))
		y.recv.expect(cqeReceiveError, 1+i, 0x05)
	}
	// One that fails on its own.
	x.postRecv()
	x.post(0x3f, 0, 0)
	x.recv.expect(cqeReceiveError, 0, 0x05)
	x.postRecv()
	x.recv.expect(cqeReceiveError, 1, 0x05)
	// After reset, counters begin at 0 again.
	for _, q := range []*testQP{x, y} {
		q.mustModify(ifc.Op2rstQp, nil)
		q.pi, q.rpi = 0, 0
		clear(q.record.at(0, 8))
		q.send.drain()
	}
	x.connect(y.num, m.addr())
	y.connect(x.num, m.addr())
	y.postRecv(seg(8, m.key, base))
	x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("x")))
	x.send.expect(cqeRequest, 0, 0)
	y.recv.expect(cqeSend, 0, 0)
}

func (q *testCQ) drain() {
	for ok := true; ok; {
		_, ok = q.poll()
	}
}

func TestQueryQP(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x, y := pair(m, m, ifc.QpTypeRc)
	for range 3 {
		y.postRecv(seg(8, m.key, base))
		x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("x")))
	}
	_, qpc := x.query()
	path := ifc.QpcPrimaryAddressPath.At(qpc)
	gid := m.addr().As16()
	for _, f := range []struct {
		name string
		f    ifc.Field
		b    []byte
		want uint64
	}{
		{"state", ifc.QpcState, qpc, ifc.QpStateRts}, {"st", ifc.QpcSt, qpc, ifc.QpTypeRc}, {"mtu", ifc.QpcMtu, qpc, 3}, {"remote_qpn", ifc.QpcRemoteQpn, qpc, uint64(y.num)},
		{"next_send_psn", ifc.QpcNextSendPsn, qpc, 0xfffff3}, {"next_rcv_psn", ifc.QpcNextRcvPsn, qpc, 0xfffff0},
		{"rre", ifc.QpcRre, qpc, 1}, {"rwe", ifc.QpcRwe, qpc, 1}, {"rae", ifc.QpcRae, qpc, 1}, {"log_rra_max", ifc.QpcLogRraMax, qpc, 2}, {"log_sra_max", ifc.QpcLogSraMax, qpc, 2},
		{"min_rnr_nak", ifc.QpcMinRnrNak, qpc, 1}, {"retry_count", ifc.QpcRetryCount, qpc, 7}, {"rnr_retry", ifc.QpcRnrRetry, qpc, 7},
		{"ack_timeout", ifc.AdsAckTimeout, path, 21}, {"hop_limit", ifc.AdsHopLimit, path, 64}, {"vhca_port_num", ifc.AdsVhcaPortNum, path, 1}, {"grh", ifc.AdsGrh, path, 1},
		{"q_key", ifc.QpcQKey, qpc, testQKey}, {"pd", ifc.QpcPd, qpc, uint64(m.pd)}, {"cqn_snd", ifc.QpcCqnSnd, qpc, uint64(x.send.num)}, {"user_index", ifc.QpcUserIndex, qpc, 0x1234},
		{"sw_sq_wqebb_counter", ifc.QpcSwSqWqebbCounter, qpc, 3}, {"sw_rq_counter", ifc.QpcSwRqCounter, qpc, 0},
	} {
		if got := f.f.Get(f.b); got != f.want {
			t.Errorf("%s: %#x, want %#x", f.name, got, f.want)
		}
	}
	if !bytes.Equal(ifc.AdsRgidRip.At(path), gid[:]) {
		t.Errorf("rgid % x", ifc.AdsRgidRip.At(path))
	}
	// RTS2RTS changes what the mask names, and nothing else.
	x.mustModify(ifc.OpRts2rtsQp, func(in, ctx []byte) {
		ifc.Rst2initQpInOptParamMask.Set(in, ifc.OptparRwe|ifc.OptparRnrTimeout)
		ifc.QpcMinRnrNak.Set(ctx, 9)
		ifc.QpcRre.Set(ctx, 0)
		ifc.QpcQKey.Set(ctx, 7)
	})
	_, qpc = x.query()
	if ifc.QpcMinRnrNak.Get(qpc) != 9 || ifc.QpcRwe.Is(qpc) || !ifc.QpcRre.Is(qpc) || ifc.QpcQKey.Get(qpc) != testQKey {
		t.Errorf("after RTS2RTS: % x", qpc)
	}
}

func TestSharedReceives(t *testing.T) {
	for _, rmp := range []bool{false, true} {
		t.Run(fmt.Sprintf("RMP %v", rmp), func(t *testing.T) {
			m := newMachine(t, newHub(), 1)
			s := m.createSRQ(rmp)
			scq, rcq := m.createCQ(6, 64), m.createCQ(6, 64)
			x := m.createQP(ifc.QpTypeRc, scq, rcq)
			y := m.createQP(ifc.QpTypeRc, scq, rcq, func(ctx []byte) {
				ifc.QpcRqType.Set(ctx, rqSRQ)
				ifc.QpcSrqnRmpnXrqn.Set(ctx, uint64(s.num))
			})
			y.logRecv = -20 // its send queue is at the start; it sends nothing
			x.connect(y.num, m.addr())
			y.connect(x.num, m.addr())
			buf := m.next
			for i := range 6 {
				s.post(seg(64, m.key, buf+uint64(i)*64))
			}
			s.arm(4, ifc.StatusOk)
			s.arm(17, ifc.StatusBadParamErr)
			order := []uint16{0, 1, 2, 3, 4, 5}
			for i, index := range order {
				x.post(ifc.OpcodeSend, 0, 0, inlineSeg([]byte{byte(i), 1}))
				rcq.expect(cqeSend, index, 0)
				if b := m.bytes(buf+uint64(i)*64, 1)[0]; b != byte(i) {
					t.Errorf("receive %d has the message %d", i, b)
				}
				if i == 2 { // 3 are left
					m.expectEvent(ifc.EventSrqRqLimit, s.num)
				}
			}
			m.expectEventOrNone(ifc.EventCommEst)
			// Entries come back in another order, and the list goes through them.
			for _, i := range []int{3, 1, 5} {
				s.free(i)
			}
			for i := range 10 + 3 {
				s.post(seg(64, m.key, buf+uint64(i)*64))
			}
			for _, want := range []uint16{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 3, 1, 5} {
				x.post(ifc.OpcodeSend, 0, 0, inlineSeg([]byte("x")))
				rcq.expect(cqeSend, want, 0)
			}
			if st := s.destroy(); st != ifc.StatusResBusy {
				t.Errorf("destroyed in use: status %#x", st)
			}
			m.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(y.num)) })
			if st := s.destroy(); st != ifc.StatusOk {
				t.Errorf("destroyed: status %#x", st)
			}
		})
	}
}

// expectEventOrNone takes events of a type.
func (m *machine) expectEventOrNone(typ uint8) {
	m.t.Helper()
	for {
		got, data, ok := m.event()
		if !ok {
			return
		}
		if got != typ {
			m.t.Fatalf("event %#x: %x", got, data)
		}
	}
}

// testSRQ is an SRQ of 16 entries as a driver has it.
type testSRQ struct {
	m          *machine
	rmp        bool
	num        uint32
	mem        buffer
	record     buffer
	head, tail int
	posted     uint16
}

func (m *machine) createSRQ(rmp bool) *testSRQ {
	s := &testSRQ{m: m, rmp: rmp, mem: m.alloc(testStride * 16), record: m.alloc(8), tail: 15}
	for i := range 16 {
		be.PutUint16(s.mem.at(i*testStride+2, 2), uint16(i+1)&15)
	}
	if rmp {
		out, _ := m.mustRun(ifc.OpCreateRmp, 0, s.fillRMP, s.mem.list()...)
		s.num = ifc.CreateRmpOutRmpn.U32(out)
		return s
	}
	out, _ := m.mustRun(ifc.OpCreateXrcSrq, 0, s.fillXRC, s.mem.list()...)
	s.num = ifc.CreateXrcSrqOutXrcSrqn.U32(out)
	return s
}

// fillRMP and fillXRC write the commands that create the SRQ.
func (s *testSRQ) fillRMP(in []byte) {
	ctx := ifc.CreateRmpInCtx.At(in)
	ifc.RmpcState.Set(ctx, rmpReady)
	wq := ifc.RmpcWq.At(ctx)
	ifc.WqLogWqSz.Set(wq, 4)
	ifc.WqLogWqStride.Set(wq, 6)
	ifc.WqPd.Set(wq, uint64(s.m.pd))
	ifc.WqDbrAddr.Set(wq, s.record.addr[0])
}

func (s *testSRQ) fillXRC(in []byte) {
	ctx := ifc.CreateXrcSrqInXrcSrqContextEntry.At(in)
	ifc.XrcSrqcLogXrcSrqSize.Set(ctx, 4)
	ifc.XrcSrqcLogRqStride.Set(ctx, 2)
	ifc.XrcSrqcPd.Set(ctx, uint64(s.m.pd))
	ifc.XrcSrqcDbRecordAddrH.Set(ctx, s.record.addr[0]>>32)
	ifc.XrcSrqcDbRecordAddrL.Set(ctx, s.record.addr[0]>>2)
}

// TestRefusedSRQs changes one field of a command that creates an SRQ.
func TestRefusedSRQs(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	s := &testSRQ{m: m, mem: m.alloc(testStride * 16), record: m.alloc(8)}
	wq := func(f ifc.Field, v uint64) func([]byte) {
		return func(in []byte) { f.Set(ifc.RmpcWq.At(ifc.CreateRmpInCtx.At(in)), v) }
	}
	rmp := func(f ifc.Field, v uint64) func([]byte) {
		return func(in []byte) { f.Set(ifc.CreateRmpInCtx.At(in), v) }
	}
	xrc := func(f ifc.Field, v uint64) func([]byte) {
		return func(in []byte) { f.Set(ifc.CreateXrcSrqInXrcSrqContextEntry.At(in), v) }
	}
	for _, kind := range []struct {
		op   uint16
		fill func([]byte)
		bad  map[string]func([]byte)
	}{
		{ifc.OpCreateRmp, s.fillRMP, map[string]func([]byte){
			"type": wq(ifc.WqWqType, 1), "cyclic": rmp(ifc.RmpcBasicCyclicRcvWqe, 1), "state": rmp(ifc.RmpcState, 0), "signature": wq(ifc.WqWqSignature, 1),
			"record in UMEM": wq(ifc.WqDbrUmemValid, 1), "ring in UMEM": wq(ifc.WqWqUmemValid, 1), "size": wq(ifc.WqLogWqSz, 17), "stride": wq(ifc.WqLogWqStride, 13),
			"no room for data": wq(ifc.WqLogWqStride, 4), "limit": wq(ifc.WqLwm, 17), "PD": wq(ifc.WqPd, 0xffffff),
		}},
		{ifc.OpCreateXrcSrq, s.fillXRC, map[string]func([]byte){
			"signature": xrc(ifc.XrcSrqcWqSignature, 1), "record in UMEM": xrc(ifc.XrcSrqcDbrUmemValid, 1), "cyclic": xrc(ifc.XrcSrqcBasicCyclicRcvWqe, 1),
			"state": xrc(ifc.XrcSrqcState, 1), "ring in UMEM": func(in []byte) { ifc.CreateXrcSrqInXrcSrqUmemValid.Set(in, 1) },
			"no room for data": xrc(ifc.XrcSrqcLogRqStride, 0), "limit": xrc(ifc.XrcSrqcLwm, 17), "PD": xrc(ifc.XrcSrqcPd, 0xffffff),
		}},
	} {
		for name, spoil := range kind.bad {
			if _, st := m.run(kind.op, 0, func(in []byte) { kind.fill(in); spoil(in) }, s.mem.list()...); st == ifc.StatusOk {
				t.Errorf("command %#x, %s: an SRQ is made", kind.op, name)
			}
		}
		m.mustRun(kind.op, 0, kind.fill, s.mem.list()...)
	}
}

// post is libmlx5's mlx5_post_srq_recv, free its mlx5_free_srq_wqe.
func (s *testSRQ) post(segs ...[]byte) {
	entry := s.mem.at(s.head*testStride, testStride)
	s.head = int(be.Uint16(entry[2:]))
	n := srqHeader
	for _, g := range append(segs, seg(0, reservedLKey, 0)) {
		n += copy(entry[n:], g)
	}
	s.posted++
	be.PutUint32(s.record.at(0, 4), uint32(s.posted))
}

func (s *testSRQ) free(i int) {
	be.PutUint16(s.mem.at(s.tail*testStride+2, 2), uint16(i))
	s.tail = i
}

func (s *testSRQ) arm(limit uint64, want ifc.Status) {
	s.m.t.Helper()
	op, fill := uint16(ifc.OpArmXrcSrq), func(in []byte) {
		ifc.ArmXrcSrqInXrcSrqn.Set(in, uint64(s.num))
		ifc.ArmXrcSrqInLwm.Set(in, limit)
	}
	if s.rmp {
		op, fill = ifc.OpModifyRmp, func(in []byte) {
			ifc.ModifyRmpInRmpn.Set(in, uint64(s.num))
			ifc.ModifyRmpInRmpState.Set(in, rmpReady)
			ifc.ModifyRmpInBitmask.Set(in, 1)
			ifc.RmpcState.Set(ifc.ModifyRmpInCtx.At(in), rmpReady)
			ifc.WqLwm.Set(ifc.RmpcWq.At(ifc.ModifyRmpInCtx.At(in)), limit)
		}
	}
	if _, st := s.m.run(op, 0, fill); st != want {
		s.m.t.Errorf("limit %d: status %#x, want %#x", limit, st, want)
	}
}

func (s *testSRQ) destroy() (st ifc.Status) {
	if s.rmp {
		_, st = s.m.run(ifc.OpDestroyRmp, 0, func(in []byte) { ifc.DestroyRmpInRmpn.Set(in, uint64(s.num)) })
	} else {
		_, st = s.m.run(ifc.OpDestroyXrcSrq, 0, func(in []byte) { ifc.DestroyXrcSrqInXrcSrqn.Set(in, uint64(s.num)) })
	}
	return st
}

// TestPairs sends messages with checked contents over 8 pairs of two machines at a time.
func TestPairs(t *testing.T) {
	h := newHub()
	a, b := newMachine(t, h, 1), newMachine(t, h, 2)
	const pairs, size = 8, 60000
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	type end struct {
		q   *testQP
		buf uint64 // sent from, then received at
	}
	var ends [pairs][2]end
	for i := range ends {
		x, y := pair(a, b, ifc.QpTypeRc)
		for k, q := range []*testQP{x, y} {
			ends[i][k] = end{q, q.m.next}
			q.m.next += 2 * 16 * pageBytes
		}
	}
	for r := range rounds {
		for i := range ends {
			for k, e := range ends[i] {
				fillPattern(e.q.m.bytes(e.buf, size), r*100+i*2+k)
				e.q.postRecv(seg(size/2, e.q.m.key, e.buf+16*pageBytes), seg(size, e.q.m.key, e.buf+16*pageBytes+size/2))
			}
		}
		for i := range ends {
			for _, e := range ends[i] {
				e.q.post(ifc.OpcodeSend, update, 0, seg(size, e.q.m.key, e.buf))
			}
		}
		for i := range ends {
			for k, e := range ends[i] {
				e.q.send.expect(cqeRequest, uint16(r), 0)
				e.q.recv.expect(cqeSend, uint16(r), 0)
				from := ends[i][1-k]
				if !bytes.Equal(e.q.m.bytes(e.buf+16*pageBytes, size), from.q.m.bytes(from.buf, size)) {
					t.Fatalf("pair %d, round %d: contents differ", i, r)
				}
			}
		}
	}
}

// TestInfiniBand sends by LIDs, and with a GRH. What datagrams have before their payload is that of
// the kernel's ib_ud_header_pack.
func TestInfiniBand(t *testing.T) {
	for _, grh := range []bool{false, true} {
		t.Run(fmt.Sprintf("GRH %v", grh), func(t *testing.T) {
			h := newHub()
			ib := func(c *Config) { c.InfiniBand = true }
			a, b := newMachine(t, h, 1, ib), newMachine(t, h, 2, ib)
			from, to, flags := a.addr(), b.addr(), uint32(0)
			if grh {
				from, to, flags = netip.MustParseAddr("fe80::ff:fe00:1"), netip.MustParseAddr("fe80::ff:fe00:2"), 1<<28
			}
			buf := b.next
			received := func(q *testQP, src uint32) {
				t.Helper()
				if e := q.recv.expect(cqeSend, 0, 0); be.Uint16(e[cqeSLID:]) != 1 || be.Uint32(e[cqeFlagsRQPN:]) != flags|src {
					t.Errorf("entry % x", e)
				}
			}
			for _, st := range []int{ifc.QpTypeRc, ifc.QpTypeUc} {
				x, y := a.createQP(st, a.createCQ(4, 64), a.createCQ(4, 64)), b.createQP(st, b.createCQ(4, 64), b.createCQ(4, 64))
				x.connect(y.num, to)
				y.connect(x.num, from)
				y.postRecv(seg(200, b.key, buf))
				x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("connected")))
				x.send.expect(cqeRequest, 0, 0)
				received(y, 0)
			}
			u, v := a.createQP(ifc.QpTypeUd, a.createCQ(4, 64), a.createCQ(4, 64)), b.createQP(ifc.QpTypeUd, b.createCQ(4, 64), b.createCQ(4, 64))
			u.connect(0, to)
			v.connect(0, from)
			fillPattern(b.bytes(buf, 200), 1)
			v.postRecv(seg(200, b.key, buf))
			av := make([]byte, avSize)
			be.PutUint32(av[avQKey:], testQKey)
			be.PutUint32(av[avQPN:], 1<<31|v.num)
			be.PutUint16(av[avLID:], 2)
			av[avTClass] = 0x40
			want := make([]byte, 40)
			if src, gid := from.As16(), to.As16(); grh {
				be.PutUint32(av[avGRHFlow:], 1<<30)
				copy(av[avGID:], gid[:])
				be.PutUint32(want, 6<<28|0x40<<20)
				be.PutUint16(want[4:], 12+8+12+4) // BTH, DETH, payload and ICRC
				want[6], want[7] = 0x1b, 64
				copy(want[8:], src[:])
				copy(want[24:], gid[:])
			}
			u.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("datagram two")))
			u.send.expect(cqeRequest, 0, 0)
			received(v, u.num)
			if got := b.bytes(buf, 52); !bytes.Equal(got[:40], want) || string(got[40:]) != "datagram two" {
				t.Errorf("received\n% x, not\n% x", got, want)
			}
			v.postRecv(seg(200, b.key, buf))
			be.PutUint16(av[avLID:], 3) // nobody's
			u.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("datagram two")))
			u.send.expect(cqeRequest, 2, 0)
			if grh {
				be.PutUint32(av[avGRHFlow:], 1<<30|1<<20) // there is one GID
				counter := u.pi
				u.post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("datagram two")))
				u.send.expect(cqeRequestError, counter, 0x02)
			}
			v.recv.empty()
		})
	}
}

func TestQueries(t *testing.T) {
	h := newHub()
	m := newMachine(t, h, 1)
	out, _ := m.mustRun(ifc.OpQueryMkey, 0, func(in []byte) { ifc.QueryMkeyInMkeyIndex.Set(in, uint64(m.key>>8)) })
	if ctx := ifc.QueryMkeyOutMemoryKeyMkeyEntry.At(out); ifc.MkcStartAddr.Get(ctx) != base || ifc.MkcLen.Get(ctx) != uint64(len(m.mem)) || ifc.MkcPd.U32(ctx) != m.pd {
		t.Errorf("mkey % x", ctx)
	}
	for _, rmp := range []bool{false, true} {
		s := m.createSRQ(rmp)
		s.arm(7, ifc.StatusOk)
		var lwm, size uint64
		if rmp {
			out, _ := m.mustRun(ifc.OpQueryRmp, 0, func(in []byte) { ifc.QueryRmpInRmpn.Set(in, uint64(s.num)) })
			wq := ifc.RmpcWq.At(ifc.QueryRmpOutRmpContext.At(out))
			lwm, size = ifc.WqLwm.Get(wq), ifc.WqLogWqSz.Get(wq)
		} else {
			out, _ := m.mustRun(ifc.OpQueryXrcSrq, 0, func(in []byte) { ifc.QueryXrcSrqInXrcSrqn.Set(in, uint64(s.num)) })
			ctx := ifc.QueryXrcSrqOutXrcSrqContextEntry.At(out)
			lwm, size = ifc.XrcSrqcLwm.Get(ctx), ifc.XrcSrqcLogXrcSrqSize.Get(ctx)
		}
		if lwm != 7 || size != 4 {
			t.Errorf("RMP %v: limit %d, size %d", rmp, lwm, size)
		}
	}
	// Receives that are missing are counted.
	x, y := pair(m, m, ifc.QpTypeRc)
	x.post(ifc.OpcodeSend, update, 0)
	counter := func() uint64 {
		out, _ := m.mustRun(ifc.OpQueryQCounter, 0, nil)
		return ifc.QueryQCounterOutOutOfBuffer.Get(out)
	}
	if n := counter(); n == 0 {
		t.Error("out_of_buffer is 0")
	}
	y.postRecv()
	x.send.expect(cqeRequest, 0, 0)
}

// TestDoorbellOfAnotherUAR has a process that guesses the number of another's QP.
func TestDoorbellOfAnotherUAR(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x := m.withCQ(m.createCQ(4, 64))
	out, _ := m.mustRun(ifc.OpAllocUar, 0, nil)
	other := ifc.AllocUarOutUar.U32(out)
	x.put(ifc.OpcodeNop, update, 0)
	be.PutUint32(x.record.at(4, 4), uint32(x.pi))
	bell := make([]byte, 8)
	be.PutUint32(bell[4:], x.num<<8)
	m.dev.doorbell(other, uarSend, bell)
	m.dev.doorbell(m.uar, uarSend+8, bell) // behind the start of the register: the rest of a request
	m.dev.doorbell(m.uar, uarSend, bell[:4])
	x.send.empty()
	m.dev.doorbell(m.uar, uarSend+flameSize, bell)
	x.send.expect(cqeRequest, 0, 0)

	// A store of a whole request that the send queue of the network function has not, and would
	// fail for.
	n := m.newNetdev()
	request := n.request(ifc.OpcodeNop, ifc.WqeCtrlCqUpdate)
	n.put(request)
	junk := append(bytes.Clone(request), make([]byte, 48)...)
	junk[ctrlFlags] = 0xff
	m.dev.doorbell(other, uarSend, junk)
	m.dev.doorbell(other, uarSend+flameSize, junk[:8])
	n.sendCQ.empty()
	m.dev.doorbell(m.uar, uarSend, request[:8])
	n.sendCQ.expect(cqeRequest, 0, 0)

	// Completion and event queues.
	x.send.arm(false, other)
	x.nops(1)
	m.noEvent()
	x.send.arm(false)
	m.expectEvent(ifc.EventComp, x.send.num)
	q := m.dev.eqs.All()[0]
	before := q.CI
	index := be.AppendUint32(nil, m.eqn<<24|(before-1)&indexMask)
	m.dev.doorbell(other, uarEQ, index)
	m.dev.doorbell(other, uarEQArm, index)
	if q.CI != before {
		t.Errorf("the index of the event queue is %d, was %d", q.CI, before)
	}
}

// TestResetDuringTraffic resets the adapter under a transfer: nothing is written afterwards, and
// the driver can begin again.
func TestResetDuringTraffic(t *testing.T) {
	h := newHub()
	a, b := newMachine(t, h, 1), newMachine(t, h, 2)
	x, _ := pair(a, b, ifc.QpTypeRc)
	target := a.bytes(base+16<<20, 8<<20)
	for range 8 {
		x.put(ifc.OpcodeRdmaRead, 0, 0, remoteSeg(base+1<<20, b.key), seg(8<<20, a.key, base+16<<20))
	}
	fillPattern(b.mem, 1)
	x.ring()
	a.dev.Reset()
	clear(target)
	if gids := a.dev.t.eng.GIDs(); len(gids) != 0 {
		t.Errorf("addresses %v after the reset", gids)
	}
	a.eqIndex = 0
	a.begin(1)
	x, y := pair(a, a, ifc.QpTypeRc)
	y.postRecv(seg(8, a.key, base))
	x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("again")))
	x.send.expect(cqeRequest, 0, 0)
	if i := slices.IndexFunc(target, func(c byte) bool { return c != 0 }); i >= 0 {
		t.Errorf("byte %d is written after the reset", i)
	}
}

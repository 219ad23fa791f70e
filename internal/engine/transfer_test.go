package engine

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs"
)

const (
	testMTU = 1024 // PathMTU 3
	mib     = 1 << 20
)

var sizes = []int{0, 1, 7, testMTU - 1, testMTU, testMTU + 1, 4*testMTU - 1, 64 << 10, mib}

// eachPair runs f with two devices on a network and with one device that sends to itself,
// natively and in a bubble.
func eachPair(t *testing.T, memory int, f func(t *testing.T, a, b *node)) {
	t.Helper()
	t.Run("network", func(t *testing.T) {
		net := newTestNetwork(1, faults{})
		f(t, newNode(t, net, memory, addrA), newNode(t, net, memory, addrB))
	})
	t.Run("self", func(t *testing.T) {
		n := newNode(t, newTestNetwork(1, faults{}), memory, addrA)
		f(t, n, n.sibling(memory))
	})
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			net := newTestNetwork(1, faults{})
			f(t, newNode(t, net, memory, addrA), newNode(t, net, memory, addrB))
		})
	})
}

// sibling returns other objects of the same device.
func (n *node) sibling(memory int) *node {
	s := &node{t: n.t, dev: n.dev, pd: n.pd}
	s.cq, s.rcq = s.newCQ(4096), s.newCQ(4096)
	s.mem = alignedBytes(memory)
	s.mr = s.register(s.mem, verbs.AccessAll|verbs.AccessMWBind|verbs.AccessFlushGlobal)
	return s
}

func TestTransfers(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			eachPair(t, 2*mib, func(t *testing.T, a, b *node) {
				x, y := pair(a, b, typ)
				for _, size := range sizes {
					testSend(t, x, y, size)
					testWrite(t, x, y, size)
					if typ == verbs.RC {
						testRead(t, x, y, size)
					}
				}
			})
		})
	}
}

func testSend(t *testing.T, x, y *conn, size int) {
	t.Helper()
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm} {
		fill(x.n.mem[:size], size)
		clear(y.n.mem)
		y.postRecv(2, y.n.sge(3, size/2), y.n.sge(3+size/2, size-size/2))
		x.post(verbs.SendWR{ID: 1, Opcode: op, Imm: 0x12345678, SGL: []verbs.SGE{x.n.sge(0, size/3), x.n.sge(size/3, size-size/3)}})
		wc := x.n.cq.expect(t, 1, verbs.WCSuccess)
		if wc.Opcode != verbs.WCSend || wc.ByteLen != uint32(size) || wc.QPNum != x.Num() {
			t.Fatalf("send completion %+v", wc)
		}
		wc = y.n.rcq.expect(t, 2, verbs.WCSuccess)
		if wc.Opcode != verbs.WCRecv || wc.ByteLen != uint32(size) || wc.QPNum != y.Num() || wc.Port != 1 {
			t.Fatalf("receive completion %+v", wc)
		}
		if op == verbs.OpSendImm && (wc.Imm() != 0x12345678 || wc.Flags&verbs.WCWithImm == 0) {
			t.Fatalf("immediate %#x, flags %v", wc.Imm(), wc.Flags)
		}
		if !bytes.Equal(y.n.mem[3:3+size], x.n.mem[:size]) || y.n.mem[3+size] != 0 {
			t.Fatalf("%v of %d bytes: wrong data", op, size)
		}
	}
}

func testWrite(t *testing.T, x, y *conn, size int) {
	t.Helper()
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteImm} {
		fill(x.n.mem[5:5+size], size+1)
		clear(y.n.mem)
		y.postRecv(4)
		x.post(verbs.SendWR{ID: 3, Opcode: op, Imm: 7, SGL: []verbs.SGE{x.n.sge(5, size)}, RemoteAddr: y.n.addr(9), RKey: y.n.mr.RKey()})
		if op == verbs.OpRDMAWrite { // which UC does not acknowledge
			x.post(verbs.SendWR{ID: 5, Opcode: verbs.OpSend})
		}
		if wc := x.n.cq.expect(t, 3, verbs.WCSuccess); wc.Opcode != verbs.WCRDMAWrite {
			t.Fatalf("write completion %+v", wc)
		}
		if op == verbs.OpRDMAWrite {
			x.n.cq.expect(t, 5, verbs.WCSuccess)
		}
		wc := y.n.rcq.expect(t, 4, verbs.WCSuccess)
		if op == verbs.OpRDMAWriteImm && (wc.Opcode != verbs.WCRecvRDMAImm || wc.ByteLen != uint32(size) || wc.Imm() != 7) {
			t.Fatalf("receive completion %+v", wc)
		}
		if !bytes.Equal(y.n.mem[9:9+size], x.n.mem[5:5+size]) || y.n.mem[9+size] != 0 || y.n.mem[8] != 0 {
			t.Fatalf("%v of %d bytes: wrong data", op, size)
		}
	}
}

func testRead(t *testing.T, x, y *conn, size int) {
	t.Helper()
	fill(y.n.mem[:size], size+2)
	clear(x.n.mem)
	x.post(verbs.SendWR{ID: 6, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{x.n.sge(1, size/5), x.n.sge(1+size/5, size-size/5)}, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()})
	if wc := x.n.cq.expect(t, 6, verbs.WCSuccess); wc.Opcode != verbs.WCRDMARead || wc.ByteLen != uint32(size) {
		t.Fatalf("read completion %+v", wc)
	}
	if !bytes.Equal(x.n.mem[1:1+size], y.n.mem[:size]) || x.n.mem[1+size] != 0 {
		t.Fatalf("read of %d bytes: wrong data", size)
	}
}

func TestInline(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC)
		for _, size := range []int{1, 8, 127, 128} {
			data := make([]byte, size)
			fill(data, size)
			y.postRecv(1, y.n.sge(0, 4096))
			x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Inline: data})
			x.n.cq.expect(t, 2, verbs.WCSuccess)
			if wc := y.n.rcq.expect(t, 1, verbs.WCSuccess); !bytes.Equal(y.n.mem[:wc.ByteLen], data) {
				t.Errorf("%d bytes: wrong data", size)
			}
			x.post(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, Inline: data, RemoteAddr: y.n.addr(1000), RKey: y.n.mr.RKey()})
			x.n.cq.expect(t, 3, verbs.WCSuccess)
			if !bytes.Equal(y.n.mem[1000:1000+size], data) {
				t.Errorf("write of %d bytes: wrong data", size)
			}
		}
	})
}

func TestAtomics(t *testing.T) {
	eachPair(t, 4096, func(t *testing.T, a, b *node) {
		x, y := pair(a, b, verbs.RC)
		ne := binary.NativeEndian
		ne.PutUint64(y.n.mem[16:], 1000)
		atomic := func(op verbs.Opcode, compareAdd, swap, old, after uint64) {
			t.Helper()
			x.post(verbs.SendWR{ID: 1, Opcode: op, Args: &verbs.SendArgs{CompareAdd: compareAdd, Swap: swap}, RemoteAddr: y.n.addr(16), RKey: y.n.mr.RKey(), SGL: []verbs.SGE{x.n.sge(8, 8)}})
			x.n.cq.expect(t, 1, verbs.WCSuccess)
			if got := ne.Uint64(x.n.mem[8:]); got != old {
				t.Errorf("%v returned %d, want %d", op, got, old)
			}
			if got := ne.Uint64(y.n.mem[16:]); got != after {
				t.Errorf("%v left %d, want %d", op, got, after)
			}
		}
		atomic(verbs.OpFetchAdd, 5, 0, 1000, 1005)
		atomic(verbs.OpCompareSwap, 1005, 1<<40, 1005, 1<<40)
		atomic(verbs.OpCompareSwap, 1005, 7, 1<<40, 1<<40)
		atomic(verbs.OpFetchAdd, ^uint64(0), 0, 1<<40, 1<<40-1)

		var value [8]byte
		ne.PutUint64(value[:], 77)
		x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpAtomicWrite, Inline: value[:], RemoteAddr: y.n.addr(16), RKey: y.n.mr.RKey()},
			verbs.SendWR{ID: 3, Opcode: verbs.OpFlush, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey(), Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 64, Type: verbs.FlushGlobal}}},
			verbs.SendWR{ID: 4, Opcode: verbs.OpFlush, RKey: y.n.mr.RKey(), Args: &verbs.SendArgs{Flush: verbs.Flush{Type: verbs.FlushGlobal, Level: verbs.FlushMR}}})
		if wc := x.n.cq.expect(t, 2, verbs.WCSuccess); wc.Opcode != verbs.WCAtomicWrite {
			t.Errorf("opcode %v", wc.Opcode)
		}
		if wc := x.n.cq.expect(t, 3, verbs.WCSuccess); wc.Opcode != verbs.WCFlush {
			t.Errorf("opcode %v", wc.Opcode)
		}
		x.n.cq.expect(t, 4, verbs.WCSuccess)
		if got := ne.Uint64(y.n.mem[16:]); got != 77 {
			t.Errorf("atomic write left %d", got)
		}
	})
}

func TestDatagrams(t *testing.T) {
	eachPair(t, 16384, func(t *testing.T, a, b *node) {
		x, y := a.newQP(verbs.UD), b.newQP(verbs.UD)
		x.connect(y)
		y.connect(x)
		gid, _ := b.dev.GID(0)
		ah := must(a.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, Port: 1, TrafficClass: 4}))(t)
		for _, size := range []int{0, 1, 100, 4096} {
			fill(a.mem[:size], size)
			clear(b.mem)
			y.postRecv(1, b.sge(0, 40+size))
			x.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSendImm, Imm: 9, SGL: []verbs.SGE{a.sge(0, size)}, To: verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}})
			a.cq.expect(t, 2, verbs.WCSuccess)
			wc := b.rcq.expect(t, 1, verbs.WCSuccess)
			if wc.ByteLen != uint32(40+size) || wc.SrcQP != x.Num() || wc.Flags != verbs.WCGRH|verbs.WCWithImm || wc.Imm() != 9 {
				t.Errorf("%d bytes: completion %+v", size, wc)
			}
			h := b.mem[20:40]
			src, dst := [4]byte(h[12:16]), [4]byte(h[16:20])
			if h[0] != 0x45 || h[1] != 4 || h[9] != 17 || checksum(h) != 0 || src != addrA.As4() || dst != b.dev.gids.at(0).addr.As4() {
				t.Errorf("IPv4 header %x", h)
			}
			if !bytes.Equal(b.mem[40:40+size], a.mem[:size]) {
				t.Errorf("%d bytes: wrong data", size)
			}
		}
		x.post(verbs.SendWR{ID: 3, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 4097)}, To: verbs.UDAddr{AH: ah.Num(), QPNum: y.Num(), QKey: testQKey}})
		a.cq.expect(t, 3, verbs.WCLocLenErr)
	})
}

// checksum returns the checksum of an IPv4 header: 0 if that in it is right.
func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

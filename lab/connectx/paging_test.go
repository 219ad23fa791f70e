//go:build linux

package connectx

import (
	"bytes"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// present marks the pages of a list as present, for reading and writing.
func present(list []byte) []byte {
	for i := 7; i < len(list); i += 8 {
		list[i] |= pagePresent
	}
	return list
}

// pagedKey is a key whose pages come and go.
type pagedKey struct {
	m   *machine
	umr *testQP
	key uint32
	mem uint64 // address of its pages, and where requests find them
}

const pagedPages = 8

func (m *machine) pagedKey() *pagedKey {
	m.t.Helper()
	k := &pagedKey{m: m, umr: m.umrQP(), mem: m.next}
	m.next += pagedPages * pageBytes
	m.keys++
	out, _ := m.mustRun(ifc.OpCreateMkey, 0, func(in []byte) {
		m.fillMkey(in, k.mem, pagedPages*pageBytes, pagedPages*8, func(mkc []byte) {
			ifc.MkcUmrEn.Set(mkc, 1)
			ifc.MkcTranslationsOctwordSize.Set(mkc, pagedPages/2)
		})
		ifc.CreateMkeyInPgAccess.Set(in, 1)
	}, make([]byte, pagedPages*8)...)
	k.key = ifc.CreateMkeyOutMkeyIndex.U32(out)<<8 | m.keys&0xff
	return k
}

// load changes the entries of all pages, as the driver does for a fault or when memory goes.
func (k *pagedKey) load(list []byte) {
	k.m.t.Helper()
	umr{key: k.key, flags: umrInline | umrCheckFree, list: list}.must(k.umr)
}

func (k *pagedKey) bring()  { k.load(present(k.m.pages(k.mem, pagedPages))) }
func (k *pagedKey) forget() { k.load(make([]byte, pagedPages*8)) }

// pageFault waits for a page fault.
func (m *machine) pageFault() []byte {
	m.t.Helper()
	typ, data := m.nextEvent()
	if typ != ifc.EventPageFault {
		m.t.Fatalf("event %#x", typ)
	}
	return data
}

func (m *machine) resume(typ int, queue, token uint32, failed bool) ifc.Status {
	m.t.Helper()
	_, st := m.run(ifc.OpPageFaultResume, 0, func(in []byte) {
		info := ifc.PageFaultResumeInPageFaultInfo.At(in)
		ifc.TransPageFaultInfoPageFaultType.Set(info, uint64(typ))
		ifc.TransPageFaultInfoWqNumber.Set(info, uint64(queue))
		ifc.TransPageFaultInfoFaultToken.Set(info, uint64(token))
		if failed {
			ifc.TransPageFaultInfoError.Set(info, 1)
		}
	})
	return st
}

// TestPageFaults answers faults of each kind, and checks what the events say.
func TestPageFaults(t *testing.T) {
	const (
		local  = 3*pageBytes + 100
		offset = 200 // in the key
	)
	for _, tt := range []struct {
		name   string
		opcode byte
		here   bool // the request's own memory is missing, otherwise the peer's
		typ    int
	}{
		{"WRITE from", ifc.OpcodeRdmaWrite, true, ifc.WqePfTypeReqSendOrWrite},
		{"SEND from", ifc.OpcodeSend, true, ifc.WqePfTypeReqSendOrWrite},
		{"READ to", ifc.OpcodeRdmaRead, true, ifc.WqePfTypeReqReadOrAtomic},
		{"WRITE to a peer's", ifc.OpcodeRdmaWrite, false, ifc.PageFaultResumeRdma | ifc.PageFaultResumeWrite},
		{"READ of a peer's", ifc.OpcodeRdmaRead, false, ifc.PageFaultResumeRdma},
		{"SEND to a peer's", ifc.OpcodeSend, false, ifc.WqePfTypeResp},
	} {
		for _, fails := range []bool{false, true} {
			m := newMachine(t, newHub(), 1)
			k := m.pagedKey()
			x, y := pair(m, m, ifc.QpTypeRc)
			other := m.next
			m.next += pagedPages * pageBytes
			pinned := seg(local, m.register(other, pagedPages*pageBytes, m.pages(other, pagedPages), func([]byte) {}), other)
			paged := seg(local, k.key, k.mem+offset)
			mine, theirs, at, rkey := pinned, paged, k.mem+offset, k.key
			if tt.here {
				mine, theirs, at, rkey = paged, pinned, other, be.Uint32(pinned[4:])
			}
			fillPattern(m.bytes(other, local), 1)
			fillPattern(m.bytes(k.mem+offset, local), 2)
			want := bytes.Clone(m.bytes(other, local))
			if tt.here != (tt.opcode == ifc.OpcodeRdmaRead) {
				want = bytes.Clone(m.bytes(k.mem+offset, local))
			}
			y.postRecv(theirs)
			x.post(ifc.OpcodeNop, 0, 0) // the index of the request is not 0
			index := x.pi
			segments := [][]byte{mine}
			if tt.opcode != ifc.OpcodeSend {
				segments = [][]byte{remoteSeg(at, rkey), mine}
			}
			x.post(tt.opcode, update, 0, segments...)

			f := m.pageFault()
			typ, number, token := int(f[24]), be.Uint32(f[24:])&0xffffff, be.Uint32(f[12:])
			queue, qp := x.num, x.num
			if !tt.here {
				queue, qp = y.num, y.num
			}
			if tt.typ&ifc.PageFaultResumeRdma != 0 {
				if key, addr, length := be.Uint32(f[4:]), be.Uint64(f[16:]), be.Uint32(f[12:]); key != k.key || addr != k.mem+offset || length != local {
					t.Errorf("%s: fault of %d bytes at %#x by %#x", tt.name, length, addr, key)
				}
				token = number
			} else if got := be.Uint16(f[6:]); tt.here && got != index || !tt.here && got != 0 {
				t.Errorf("%s: fault of request %d", tt.name, got)
			}
			if typ != tt.typ || number != queue || token != qp || be.Uint32(f) != 0 {
				t.Errorf("%s: fault % x", tt.name, f)
			}

			// What a driver would not do changes nothing.
			wrong := ifc.WqePfTypeResp // of the other half of the QP
			if !tt.here {
				wrong = ifc.WqePfTypeReqSendOrWrite
			}
			for _, c := range []struct {
				typ          int
				queue, token uint32
				want         ifc.Status
			}{
				{tt.typ, queue, 0xabcdef, ifc.StatusBadParamErr},
				{tt.typ, 0xabcdef, 0xabcdef, ifc.StatusBadResStateErr},
				{wrong, queue, token, ifc.StatusBadResStateErr},
			} {
				if st := m.resume(c.typ, c.queue, c.token, false); st != c.want {
					t.Errorf("%s: resuming %+v: %#x", tt.name, c, st)
				}
			}
			x.send.empty()

			if !fails {
				k.bring()
			}
			if st := m.resume(typ, queue, token, fails); st != ifc.StatusOk {
				t.Fatalf("%s: resuming: %#x", tt.name, st)
			}
			e := x.send.next()
			if got := e[cqeOpOwn] >> 4; (got != cqeRequest) != fails {
				t.Errorf("%s, fails %v: % x", tt.name, fails, e)
				continue
			}
			if st := m.resume(typ, queue, token, false); st != ifc.StatusBadResStateErr {
				t.Errorf("%s: resuming again: %#x", tt.name, st)
			}
			if fails {
				continue
			}
			got := m.bytes(k.mem+offset, local)
			if tt.here != (tt.opcode == ifc.OpcodeRdmaRead) {
				got = m.bytes(other, local)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: contents differ", tt.name)
			}
		}
	}
}

// TestPageFaultUnanswered: a guest that does not answer page faults holds its QPs, and nothing else.
func TestPageFaultUnanswered(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	k := m.pagedKey()
	for range 20 {
		x, y := pair(m, m, ifc.QpTypeRc)
		x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(k.mem, k.key), seg(8, k.key, k.mem))
		f := m.pageFault()
		// Resumed without a page, it faults again.
		token := be.Uint32(f[12:])
		if st := m.resume(int(f[24]), x.num, token, false); st != ifc.StatusOk {
			t.Fatalf("resuming: %#x", st)
		}
		m.pageFault()
		x.send.empty()
		for _, q := range []*testQP{x, y} {
			m.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(q.num)) })
		}
		if st := m.resume(int(f[24]), x.num, token, false); st != ifc.StatusBadResStateErr {
			t.Errorf("resuming a QP that is gone: %#x", st)
		}
	}
	m.noEvent()
}

// TestPagesComeAndGo: requests find pages as the driver loads and takes them, and writes fault on pages
// that may only be read.
func TestPagesComeAndGo(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	k := m.pagedKey()
	x, _ := pair(m, m, ifc.QpTypeRc)
	written := byte(0)
	write := func(page int) {
		written++
		x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(k.mem+uint64(page*pageBytes), k.key), inlineSeg([]byte{written}))
	}
	done := func(page int) {
		t.Helper()
		x.send.expect(cqeRequest, x.pi-1, 0)
		if got := m.bytes(k.mem+uint64(page*pageBytes), 1)[0]; got != written {
			t.Errorf("page %d has %d; want %d", page, got, written)
		}
	}
	k.bring()
	write(3)
	done(3)
	// Only some are there, one of them in another place.
	list := present(m.pages(k.mem, pagedPages))
	moved := m.alloc(pageBytes)
	be.PutUint64(list[5*8:], moved.addr[0]|pagePresent)
	clear(list[2*8 : 3*8])
	list[6*8+7] &^= pageWrite
	k.load(list)
	write(3)
	done(3)
	write(5)
	x.send.expect(cqeRequest, x.pi-1, 0)
	if got := moved.at(0, 1)[0]; got != written {
		t.Errorf("the page has %d; want %d", got, written)
	}
	m.noEvent()
	for _, page := range []int{2, 6} {
		write(page)
		f := m.pageFault()
		x.send.empty()
		k.bring()
		if st := m.resume(int(f[24]), be.Uint32(f[24:])&0xffffff, be.Uint32(f[24:])&0xffffff, false); st != ifc.StatusOk {
			t.Fatalf("resuming: %#x", st)
		}
		done(page)
		k.load(list)
	}
	k.forget()
	x.post(ifc.OpcodeRdmaRead, update, 0, remoteSeg(k.mem, k.key), seg(8, m.key, base))
	m.pageFault()
	if n := m.dev.t.mkeys.xlt.Load(); n <= 0 {
		t.Errorf("%d bytes of entries", n)
	}
}

// FuzzPages loads any entries for the pages of a key in use, whose other page is nobody's.
func FuzzPages(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0, 0, 0, 0, 0, 0x10, 0, pagePresent}, 8), uint8(0))
	f.Add(make([]byte, 64), uint8(2))
	f.Add(bytes.Repeat([]byte{0xff}, 64), uint8(1))
	f.Fuzz(func(t *testing.T, list []byte, offset uint8) {
		m := newMachine(t, newHub(), 1)
		k := m.pagedKey()
		k.bring()
		u := umr{key: k.key, flags: umrInline | umrCheckFree | umrOffsetValid, offset: uint64(offset % 8), list: list[:min(len(list), 64)&^63]}
		for range 2 {
			if u.post(k.umr) != 0 {
				break
			}
		}
	})
}

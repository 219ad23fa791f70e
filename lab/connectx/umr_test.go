//go:build linux

package connectx

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// umr is a UMR request of a test.
type umr struct {
	key    uint32 // as the control segment names it
	flags  byte
	mask   uint64
	offset uint64           // of the entries, in octowords
	mkc    func(mkc []byte) // the new values
	list   []byte           // entries, in units of 64 bytes
	at     uint64           // where they are, if not in the request
	lkey   uint32
}

// segments are what follows the control segment.
func (u *umr) segments() []byte {
	b := make([]byte, umrCtrlSize+ifc.MkcSize)
	b[0] = u.flags
	be.PutUint16(b[umrOctowords:], uint16(len(u.list)/octoword))
	be.PutUint16(b[umrOffset:], uint16(u.offset))
	be.PutUint32(b[umrOffsetTop:], uint32(u.offset>>16))
	be.PutUint64(b[umrMask:], u.mask)
	if u.mkc != nil {
		u.mkc(b[umrCtrlSize:])
	}
	if u.at != 0 {
		return append(b, seg(len(u.list), u.lkey, u.at)...)
	}
	return append(b, u.list...)
}

// post posts the request and returns the syndrome that it completes with, 0 for success.
func (u umr) post(q *testQP) byte {
	q.m.t.Helper()
	counter := q.pi
	q.post(ifc.OpcodeUmr, update, u.key, u.segments())
	e := q.send.next()
	if be.Uint16(e[cqeCounter:]) != counter {
		q.m.t.Fatalf("entry % x of request %d; want %d", e, be.Uint16(e[cqeCounter:]), counter)
	}
	if e[cqeOpOwn]>>4 == cqeRequest {
		if e[cqeOpQPN] != ifc.OpcodeUmr {
			q.m.t.Errorf("entry with the opcode %#x", e[cqeOpQPN])
		}
		return 0
	}
	return e[cqeSyndrome]
}

func (u umr) must(q *testQP) {
	q.m.t.Helper()
	if s := u.post(q); s != 0 {
		q.m.t.Fatalf("UMR request of key %#x: syndrome %#x", u.key, s)
	}
}

// freeKey makes a key that is free, with room for entries.
func (m *machine) freeKey(mode, octowords uint64) uint32 {
	m.t.Helper()
	return m.register(0, 0, nil, func(mkc []byte) {
		ifc.MkcFree.Set(mkc, 1)
		ifc.MkcUmrEn.Set(mkc, 1)
		ifc.MkcAccessMode10.Set(mkc, mode)
		ifc.MkcTranslationsOctwordSize.Set(mkc, octowords)
		ifc.MkcEnRinval.Set(mkc, 1)
		ifc.MkcA.Set(mkc, 0)
		ifc.MkcRw.Set(mkc, 0)
		ifc.MkcRr.Set(mkc, 0)
		ifc.MkcLw.Set(mkc, 0)
	})
}

// kernelPair is pair with QPs that may load lists of pages.
func kernelPair(m *machine, st int) (x, y *testQP) {
	x = m.createQP(st, m.createCQ(6, 64), m.createCQ(6, 64), func(ctx []byte) { ifc.QpcFre.Set(ctx, 1) })
	y = m.createQP(st, m.createCQ(6, 64), m.createCQ(6, 64))
	x.connect(y.num, m.addr())
	y.connect(x.num, m.addr())
	return x, y
}

// umrQP makes a QP as mlx5_ib has it for its own UMR requests: without a PD.
func (m *machine) umrQP() *testQP {
	q := m.createQP(ifc.QpTypeRegUmr, m.createCQ(6, 64), m.createCQ(6, 64), func(ctx []byte) {
		ifc.QpcFre.Set(ctx, 1)
		ifc.QpcPd.Set(ctx, 0)
	})
	q.connect(0, m.addr())
	return q
}

const (
	protErr, bindErr, opErr, flushErr, accessErr = 0x04, 0x06, 0x02, 0x05, 0x13

	maskAccess = ifc.MkeyMaskLr | ifc.MkeyMaskLw | ifc.MkeyMaskRr | ifc.MkeyMaskRw | ifc.MkeyMaskA
	maskPlace  = ifc.MkeyMaskLen | ifc.MkeyMaskPageSize | ifc.MkeyMaskStartAddr
)

// write has x write a byte by a remote key, and returns the syndrome.
func (q *testQP) write(value byte, addr uint64, key uint32) byte {
	q.m.t.Helper()
	q.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(addr, key), inlineSeg([]byte{value}))
	e := q.send.next()
	if e[cqeOpOwn]>>4 == cqeRequest {
		return 0
	}
	q.send.drain()
	return e[cqeSyndrome]
}

// TestUMRRegisters registers memory as mlx5_ib does: first a free key, whose list of pages comes in
// two parts from memory, then enabled, reregistered and revoked.
func TestUMRRegisters(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q, all := m.umrQP(), m.physicalKey()
	const pages, half = 16, 8
	key := m.freeKey(ifc.MkcModeMtt, pages/2)
	mem := m.alloc(pages * pageBytes)
	list := m.alloc(pageBytes)
	for i, a := range mem.addr {
		be.PutUint64(list.at(i*8, 8), a|3)
	}
	load := func(from int) []byte { return list.at(from*8, half*8) }
	const iova = 0x7f00_0000_0123
	umr{key: key, flags: umrCheckNotFree, list: load(0), at: list.addr[0], lkey: all}.must(q)
	enable := umr{
		key: key&^0xff | 0x77, flags: umrCheckNotFree | umrOffsetValid, offset: half / 2, list: load(half), at: list.addr[0] + half*8, lkey: all,
		mask: maskPlace | maskAccess | ifc.MkeyMaskPd | ifc.MkeyMaskKey | ifc.MkeyMaskFree,
		mkc: func(mkc []byte) {
			m.keys = 0x77
			m.fillMkey(make([]byte, ifc.Layouts[ifc.OpCreateMkey].In), 0, 0, 0, func([]byte) {})
			for _, f := range []ifc.Field{ifc.MkcRw, ifc.MkcRr, ifc.MkcLw, ifc.MkcLr} {
				f.Set(mkc, 1)
			}
			ifc.MkcPd.Set(mkc, uint64(m.pd))
			ifc.MkcStartAddr.Set(mkc, iova)
			ifc.MkcLen.Set(mkc, (pages-1)*pageBytes)
			ifc.MkcLogPageSize.Set(mkc, 12)
			ifc.MkcMkey70.Set(mkc, 0x77)
		},
	}
	enable.must(q)
	key = enable.key
	x, _ := pair(m, m, ifc.QpTypeRc)
	src := m.next
	m.next += pages * pageBytes
	fillPattern(m.bytes(src, (pages-1)*pageBytes), 3)
	x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(iova, key), seg((pages-1)*pageBytes, m.key, src))
	x.send.expect(cqeRequest, x.pi-1, 0)
	var got []byte
	for i := range pages {
		got = append(got, mem.at(i*pageBytes, pageBytes)...)
	}
	if !bytes.Equal(got[0x123:][:(pages-1)*pageBytes], m.bytes(src, (pages-1)*pageBytes)) {
		t.Error("contents differ")
	}
	out, _ := m.mustRun(ifc.OpQueryMkey, 0, func(in []byte) { ifc.QueryMkeyInMkeyIndex.Set(in, uint64(key>>8)) })
	if ctx := ifc.QueryMkeyOutMemoryKeyMkeyEntry.At(out); ifc.MkcFree.Is(ctx) || ifc.MkcMkey70.U32(ctx) != 0x77 || ifc.MkcStartAddr.Get(ctx) != iova || ifc.MkcA.Is(ctx) {
		t.Errorf("context % x", ctx)
	}
	// Other rights: the same pages.
	rereg := umr{key: key, flags: umrCheckFree | umrInline, mask: maskAccess | ifc.MkeyMaskPd, mkc: func(mkc []byte) {
		ifc.MkcRw.Set(mkc, 1)
		ifc.MkcPd.Set(mkc, uint64(m.pd))
	}}
	rereg.must(q)
	if s := x.write(9, iova, key); s != 0 || mem.at(0x123, 1)[0] != 9 {
		t.Errorf("WRITE with another right: syndrome %#x", s)
	}
	x.post(ifc.OpcodeRdmaRead, update, 0, remoteSeg(iova, key), seg(8, m.key, src))
	x.send.expect(cqeRequestError, x.pi-1, accessErr)
	// Revoked: nobody may use it, and what needs a key that is in use fails.
	umr{key: key, flags: umrInline, mask: ifc.MkeyMaskFree | ifc.MkeyMaskPd, mkc: func(mkc []byte) { ifc.MkcFree.Set(mkc, 1) }}.must(q)
	x, _ = pair(m, m, ifc.QpTypeRc)
	if s := x.write(9, iova, key); s != accessErr {
		t.Errorf("WRITE to a key that is free: syndrome %#x", s)
	}
	if s := rereg.post(q); s != bindErr {
		t.Errorf("other rights of a key that is free: syndrome %#x", s)
	}
}

// TestUMRRefuses posts what a queue may not do to a key, each from a new QP.
func TestUMRRefuses(t *testing.T) {
	var reason atomic.Value // of the last refusal
	m := newMachine(t, newHub(), 1, lastRefusal(&reason))
	all := m.physicalKey()
	entries := make([]byte, 64)
	be.PutUint64(entries, base|3)
	klm := func(n uint32, key uint32) []byte {
		b := make([]byte, 64)
		copy(b, seg(int(n), key, base))
		return b
	}
	mtt := func() uint32 { return m.freeKey(ifc.MkcModeMtt, 4) }
	set := func(f ...ifc.Field) func([]byte) {
		return func(mkc []byte) {
			for _, f := range f {
				f.Set(mkc, 1)
			}
		}
	}
	user, kernel := func() *testQP { x, _ := pair(m, m, ifc.QpTypeRc); return x }, func() *testQP { x, _ := kernelPair(m, ifc.QpTypeRc); return x }
	for _, tt := range []struct {
		name   string
		qp     func() *testQP
		umr    umr
		want   byte
		reason string
	}{
		{"reserved flag", kernel, umr{key: mtt(), flags: 1}, opErr, "unknown flags"},
		{"both checks", kernel, umr{key: mtt(), flags: umrCheckFree | umrCheckNotFree}, opErr, "the key is to be free, and not to be"},
		{"unknown bit of the mask", kernel, umr{key: mtt(), mask: ifc.MkeyMaskEnSigerr}, opErr, "unknown fields"},
		{"signatures", kernel, umr{key: mtt(), mask: ifc.MkeyMaskBsfEn}, opErr, "unknown fields"},
		{"entries that are no multiple of 64 bytes", kernel, umr{key: mtt(), flags: umrInline, list: entries[:16]}, opErr, "entries are not in units of 64 bytes"},
		{"entries beyond the request", kernel, umr{key: mtt(), flags: umrInline, list: entries, at: base, lkey: all}, opErr, "entries are behind the request's end"},
		{"entries without a data segment", kernel, umr{key: mtt(), list: entries}, opErr, "no segment for the entries"},
		{"offset that is not valid", kernel, umr{key: mtt(), flags: umrInline, offset: 4}, opErr, "an offset without its flag"},
		{"datagram QP", func() *testQP { return m.withCQ(m.createCQ(4, 64)) }, umr{key: mtt(), flags: umrInline}, opErr, "the QP is of UD"},
		{"PD by a QP of a program", user, umr{key: mtt(), flags: umrInline, mask: ifc.MkeyMaskPd}, opErr, "only the QP for such requests may set the PD"},
		{"PD by a QP of the kernel", kernel, umr{key: mtt(), flags: umrInline, mask: ifc.MkeyMaskPd}, opErr, "only the QP for such requests may set the PD"},
		{"page size by a QP of a program", user, umr{key: mtt(), flags: umrInline, mask: ifc.MkeyMaskPageSize}, opErr, "the QP may not set the size of pages"},
		{"pages by a QP of a program", user, umr{key: mtt(), flags: umrInline, list: entries}, bindErr, "the QP may not load a list of pages"},
		{"parts of a key of all memory by a QP of a program", user, umr{key: m.freeKey(ifc.MkcModeKsm, 4), flags: umrInline, list: entries}, bindErr, "the QP may not load a list of pages"},
		{"entries behind the end", kernel, umr{key: mtt(), flags: umrInline | umrOffsetValid, offset: 4, list: entries}, bindErr, "the key has no room for the entries"},
		{"entries far behind the end", kernel, umr{key: mtt(), flags: umrInline | umrOffsetValid, offset: 1<<48 - 4, list: entries}, bindErr, "the key has no room for the entries"},
		{"entries by a key that is not physical", kernel, umr{key: mtt(), list: entries, at: base, lkey: m.key}, protErr, "the entries cannot be read"},
		{"entries that are not there", kernel, umr{key: mtt(), list: entries, at: base + uint64(len(m.mem)) - 63, lkey: all}, protErr, "the entries cannot be read"},
		{"key that does not exist", kernel, umr{key: 0xfffff00, flags: umrInline}, bindErr, "there is no such key"},
		{"another variant of the key", kernel, umr{key: mtt() ^ 1, flags: umrInline, mask: ifc.MkeyMaskFree, mkc: set(ifc.MkcFree)}, bindErr, "the key is of another variant"},
		{"key that UMR may not change", kernel, umr{key: m.key, flags: umrInline, mask: ifc.MkeyMaskLw}, bindErr, "the key is not for such requests"},
		{"key that is not free", kernel, umr{key: m.windowOn(64, anyQP), flags: umrInline | umrCheckNotFree}, bindErr, "the key is not free"},
		{"key that is free", kernel, umr{key: mtt(), flags: umrInline | umrCheckFree}, bindErr, "the key is free"},
		{"key of another QP", user, umr{key: m.windowOn(64, 0x12345), flags: umrInline, mask: ifc.MkeyMaskFree, mkc: set(ifc.MkcFree)}, bindErr, "the key is bound to another QP"},
		{"check of the QP", user, umr{key: m.windowOn(64, anyQP), flags: umrInline | umrCheckQPN, mask: ifc.MkeyMaskFree, mkc: set(ifc.MkcFree)}, bindErr, "the key is not bound to the QP"},
		{"window for another QP", user, umr{key: m.freeKey(ifc.MkcModeKlms, 4), flags: umrInline, mask: ifc.MkeyMaskQpn, mkc: set(ifc.MkcQpn)}, bindErr, "the key is to be another QP's"},
		{"pages that are not there", kernel, umr{key: mtt(), flags: umrInline, list: bytes.Repeat([]byte{0x80, 0, 0, 0, 0, 0, 0, pagePresent}, 8), mask: maskPlace | ifc.MkeyMaskFree, mkc: func(mkc []byte) {
			ifc.MkcLen.Set(mkc, 8)
			ifc.MkcLogPageSize.Set(mkc, 12)
		}}, bindErr, "the key cannot be enabled"},
		{"list of keys that is too short", user, umr{key: m.freeKey(ifc.MkcModeKlms, 4), flags: umrInline, list: klm(7, m.key), mask: ifc.MkeyMaskLen | ifc.MkeyMaskFree, mkc: func(mkc []byte) {
			ifc.MkcLen.Set(mkc, 8)
		}}, bindErr, "the key cannot be enabled"},
	} {
		q := tt.qp()
		if got := tt.umr.post(q); got != tt.want {
			t.Errorf("%s: syndrome %#x, want %#x", tt.name, got, tt.want)
		}
		if got := reason.Load(); got != tt.reason {
			t.Errorf("%s: the reason is %q, want %q", tt.name, got, tt.reason)
		}
	}
	// A key of another PD.
	x := user()
	out, _ := m.mustRun(ifc.OpAllocPd, 0, nil)
	foreign := m.register(0, 0, nil, func(mkc []byte) {
		ifc.MkcFree.Set(mkc, 1)
		ifc.MkcUmrEn.Set(mkc, 1)
		ifc.MkcPd.Set(mkc, uint64(ifc.AllocPdOutPd.U32(out)))
	})
	if s := (umr{key: foreign, flags: umrInline}).post(x); s != bindErr {
		t.Errorf("key of another PD: syndrome %#x", s)
	}
	x = user()
	x.put(ifc.OpcodeUmr, 0, m.key, make([]byte, 16))
	x.ring()
	x.send.expect(cqeRequestError, 0, opErr)
}

// windowOn makes a window of n bytes at base with a command.
func (m *machine) windowOn(n uint64, qpn uint64) uint32 {
	return m.register(base, n, seg(int(n), m.key, base), func(mkc []byte) {
		ifc.MkcAccessMode10.Set(mkc, ifc.MkcModeKlms)
		ifc.MkcUmrEn.Set(mkc, 1)
		ifc.MkcQpn.Set(mkc, qpn)
	})
}

// bind is libmlx5's set_bind_wr: of a window of type 1 or 2, or without length an invalidation.
func (q *testQP) bind(typ int, key, newKey uint32, addr, length uint64, parts ...[]byte) byte {
	q.m.t.Helper()
	u := umr{key: key, flags: umrInline | umrOffsetValid, mask: ifc.MkeyMaskFree | ifc.MkeyMaskKey}
	qpn := uint64(anyQP)
	if typ == 2 {
		u.mask |= ifc.MkeyMaskQpn
		if length > 0 {
			qpn = uint64(q.num)
		}
	}
	u.mkc = func(mkc []byte) {
		binary.NativeEndian.PutUint64(mkc[40:], 0xdeadbeefdeadbeef) // what was there before
		ifc.MkcMkey70.Set(mkc, uint64(newKey&0xff))
		ifc.MkcQpn.Set(mkc, qpn)
		if length == 0 {
			ifc.MkcFree.Set(mkc, 1)
			return
		}
		ifc.MkcRw.Set(mkc, 1)
		ifc.MkcStartAddr.Set(mkc, addr)
		ifc.MkcLen.Set(mkc, length)
	}
	switch {
	case length > 0:
		u.mask |= ifc.MkeyMaskLen | ifc.MkeyMaskStartAddr | ifc.MkeyMaskLw | ifc.MkeyMaskRr | ifc.MkeyMaskRw | ifc.MkeyMaskA
		u.list = bytes.Join(parts, nil)
		u.list = append(u.list, make([]byte, (64-len(u.list)%64)%64)...)
		if typ == 2 {
			u.flags |= umrCheckNotFree
		}
	case typ == 2:
		u.flags |= umrCheckQPN
	}
	return u.post(q)
}

func TestMemoryWindows(t *testing.T) {
	for _, st := range []int{ifc.QpTypeRc, ifc.QpTypeUc} {
		m := newMachine(t, newHub(), 1)
		buf := m.next
		m.next += pageBytes
		x, y := pair(m, m, st)
		check := func(what string, key uint32, addr uint64, want byte) {
			t.Helper()
			if st == ifc.QpTypeUc && want == accessErr { // the responder drops it
				want = 0
			}
			value := m.bytes(addr, 1)[0] + 1
			if got := x.write(value, addr, key); got != want {
				t.Errorf("%s: syndrome %#x, want %#x", what, got, want)
			}
			if want != 0 {
				x, y = pair(m, m, st)
			}
		}
		// Type 1: for all QPs of the PD, and bound again without an end.
		w := m.freeKey(ifc.MkcModeKlms, 4)
		check("a window that is not bound", w, buf, accessErr)
		if s := y.bind(1, w, w+1, buf, 100, seg(100, m.key, buf)); s != 0 {
			t.Fatalf("bind: syndrome %#x", s)
		}
		check("the window", w&^0xff|(w+1)&0xff, buf+99, 0)
		if b := m.bytes(buf+99, 1)[0]; b != 1 {
			t.Errorf("byte %d has been written", b)
		}
		check("behind the window", w&^0xff|(w+1)&0xff, buf+100, accessErr)
		check("its old key", w, buf, accessErr)
		w = w&^0xff | (w+1)&0xff
		if s := y.bind(1, w, w+1, buf+200, 10, seg(10, m.key, buf+200)); s != 0 {
			t.Fatalf("bind again: syndrome %#x", s)
		}
		w = w&^0xff | (w+1)&0xff
		check("the window", w, buf+200, 0)
		check("where it was", w, buf, accessErr)
		if s := y.bind(1, w, w, 0, 0); s != 0 {
			t.Fatalf("unbind: syndrome %#x", s)
		}
		check("a window that is unbound", w, buf+200, accessErr)

		// Type 2: for the QP that has bound it, until it is invalidated.
		w = m.freeKey(ifc.MkcModeKlms, 4)
		if s := y.bind(2, w, w+5, buf, 100, seg(100, m.key, buf)); s != 0 {
			t.Fatalf("bind of type 2: syndrome %#x", s)
		}
		w = w&^0xff | (w+5)&0xff
		check("the window", w, buf, 0)
		other, _ := pair(m, m, st)
		before := m.bytes(buf, 1)[0]
		other.write(77, buf, w)
		if m.bytes(buf, 1)[0] != before {
			t.Error("another QP has used the window")
		}
		if s := y.bind(2, w, w+1, buf, 100, seg(100, m.key, buf)); s != bindErr {
			t.Errorf("bind of a bound window: syndrome %#x", s)
		}
		x, y = pair(m, m, st)
		if s := y.bind(2, w, 0, 0, 0); s != bindErr {
			t.Errorf("invalidated by another QP: syndrome %#x", s)
		}
		x, y = pair(m, m, st)
		w = m.freeKey(ifc.MkcModeKlms, 4)
		if s := y.bind(2, w, w+1, buf, 100, seg(100, m.key, buf)); s != 0 {
			t.Fatalf("bind of type 2: syndrome %#x", s)
		}
		if s := y.bind(2, w&^0xff|(w+1)&0xff, 0, 0, 0); s != 0 {
			t.Errorf("invalidate: syndrome %#x", s)
		}
		if s := y.bind(2, w&^0xff|(w+1)&0xff, w+2, buf, 100, seg(100, m.key, buf)); s != 0 {
			t.Errorf("bind after that: syndrome %#x", s)
		}
		check("the window", w&^0xff|(w+2)&0xff, buf, 0)
		// Memory whose region is gone is not the window's any more.
		region := m.register(buf, pageBytes, m.pages(buf, 2), func([]byte) {})
		w = m.freeKey(ifc.MkcModeKlms, 4)
		if s := y.bind(1, w, w+1, buf, 100, seg(100, region, buf)); s != 0 {
			t.Fatalf("bind: syndrome %#x", s)
		}
		w = w&^0xff | (w+1)&0xff
		check("the window", w, buf, 0)
		m.mustRun(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(region>>8)) })
		before = m.bytes(buf, 1)[0]
		check("a window without a region", w, buf, accessErr)
		if m.bytes(buf, 1)[0] != before {
			t.Error("it has been written")
		}
	}
}

// TestFastRegistration is REG_MR and LOCAL_INV of the kernel's users, with lists in the request and
// in memory, of pages and of parts.
func TestFastRegistration(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	all := m.physicalKey()
	buf, got := m.next, m.next+4*pageBytes
	m.next += 8 * pageBytes
	list := m.alloc(pageBytes)
	for _, klms := range []bool{false, true} {
		for _, inline := range []bool{false, true} {
			x, y := kernelPair(m, ifc.QpTypeRc)
			mode, entries := uint64(ifc.MkcModeMtt), present(m.pages(buf, 8))
			if klms {
				mode = ifc.MkcModeKlms
				entries = bytes.Join([][]byte{seg(100, m.key, buf), seg(3*pageBytes, m.key, buf+100), make([]byte, 32)}, nil)
			}
			key := m.freeKey(mode, 4)
			next := key&^0xff | (key+1)&0xff
			reg := umr{
				key: next, flags: umrCheckNotFree, list: entries,
				mask: maskPlace | maskAccess | ifc.MkeyMaskEnRinval | ifc.MkeyMaskKey | ifc.MkeyMaskSmallFence | ifc.MkeyMaskFree,
				mkc: func(mkc []byte) {
					for _, f := range []ifc.Field{ifc.MkcRw, ifc.MkcRr, ifc.MkcLw, ifc.MkcLr, ifc.MkcEnRinval} {
						f.Set(mkc, 1)
					}
					ifc.MkcMkey70.Set(mkc, uint64(next&0xff))
					ifc.MkcStartAddr.Set(mkc, 1<<40)
					ifc.MkcLen.Set(mkc, 3*pageBytes)
					ifc.MkcLogPageSize.Set(mkc, 12)
				},
			}
			if inline {
				reg.flags |= umrInline
			} else {
				reg.at, reg.lkey = list.addr[0], all
				copy(list.at(0, 64), entries)
			}
			reg.must(x)
			fillPattern(m.bytes(buf, 3*pageBytes), len(entries))
			x.post(ifc.OpcodeRdmaRead, update|ifc.FenceFence, 0, remoteSeg(1<<40, next), seg(3*pageBytes, m.key, got))
			y.send.empty()
			x.send.expect(cqeRequest, x.pi-1, 0)
			if !bytes.Equal(m.bytes(got, 3*pageBytes), m.bytes(buf, 3*pageBytes)) {
				t.Errorf("parts %v, inline %v: contents differ", klms, inline)
			}
			// The peer invalidates the key of the QP with a SEND, once.
			x.postRecv(seg(8, m.key, got))
			y.post(ifc.OpcodeSendInval, update, next)
			y.send.expect(cqeRequest, y.pi-1, 0)
			if e := x.recv.expect(cqeSendInval, 0, 0); be.Uint32(e[cqeImm:]) != next {
				t.Errorf("invalidated %#x, want %#x", be.Uint32(e[cqeImm:]), next)
			}
			if s := y.write(1, 1<<40, next); s != accessErr {
				t.Errorf("WRITE to a key that is invalidated: syndrome %#x", s)
			}
			x, y = kernelPair(m, ifc.QpTypeRc)
			reg.must(x)
			linv := umr{key: next, flags: umrInline, mask: ifc.MkeyMaskFree, mkc: func(mkc []byte) { ifc.MkcFree.Set(mkc, 1) }}
			linv.must(x)
			if s := y.write(1, 1<<40, next); s != accessErr {
				t.Errorf("WRITE to a key that is invalidated: syndrome %#x", s)
			}
			// A key that cannot be invalidated ends the connection.
			x, y = kernelPair(m, ifc.QpTypeRc)
			x.postRecv(seg(8, m.key, got))
			y.post(ifc.OpcodeSendInval, 0, m.key)
			x.recv.expect(cqeReceiveError, 0, 0x12)
		}
	}
}

// TestTranslationEntriesAreBounded has a guest that fills the lists of many keys.
func TestTranslationEntriesAreBounded(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q, all := m.umrQP(), m.physicalKey()
	var keys []uint32
	list := m.bytes(base, 64)
	const octowords = 1 << 21
	fit := int(maxXLT-m.dev.t.mkeys.xlt.Load()) / (octowords * octoword)
	for len(keys) < fit+2 {
		keys = append(keys, m.freeKey(ifc.MkcModeMtt, octowords))
	}
	var refused int
	for _, k := range keys {
		u := umr{key: k, flags: umrOffsetValid, offset: octowords - 4, list: list, at: base, lkey: all}
		if u.post(q) != 0 {
			refused++
			q = m.umrQP()
		}
	}
	if refused != 2 || m.dev.t.mkeys.xlt.Load() > maxXLT {
		t.Errorf("%d of %d lists refused, %d bytes", refused, len(keys), m.dev.t.mkeys.xlt.Load())
	}
	for _, k := range keys {
		m.mustRun(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(k>>8)) })
	}
	m.dev.Reset()
	if n := m.dev.t.mkeys.xlt.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// FuzzUMR has any UMR request, of a program's QP, the kernel's or that for such requests, change a
// key, which is then used. A program does not reach memory that is not its own.
func FuzzUMR(f *testing.F) {
	f.Add(byte(0), byte(umrInline|umrCheckNotFree), uint64(ifc.MkeyMaskLen|ifc.MkeyMaskStartAddr|ifc.MkeyMaskRw|ifc.MkeyMaskFree), uint64(0), make([]byte, 64), seg(4096, 0x101, base))
	f.Add(byte(1), byte(umrInline|umrOffsetValid), uint64(maskPlace|maskAccess|ifc.MkeyMaskFree|ifc.MkeyMaskKey), uint64(4), bytes.Repeat([]byte{0x0c}, 64), bytes.Repeat([]byte{0, 0, 0, 0, 0, 0x10, 0x10, 3}, 8))
	mkc := make([]byte, ifc.MkcSize)
	ifc.MkcLen.Set(mkc, 100)
	ifc.MkcStartAddr.Set(mkc, base)
	ifc.MkcRw.Set(mkc, 1)
	ifc.MkcLogPageSize.Set(mkc, 12)
	for _, flags := range []byte{umrInline, umrInline | umrCheckNotFree, 0} {
		f.Add(1+3*byte(ifc.MkcModeKlms)+9*4, flags, uint64(maskPlace|maskAccess|ifc.MkeyMaskFree), uint64(0), mkc[:64], bytes.Repeat(seg(64, 0x101, base), 4))
	}
	f.Add(byte(2), byte(0), ^uint64(0), uint64(1<<47), bytes.Repeat([]byte{0xff}, 64), bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, which, flags byte, mask, offset uint64, mkc, list []byte) {
		m := newMachine(t, newHub(), 1)
		all := m.physicalKey()
		n := len(m.mem)/pageBytes - 1
		m.mustRun(ifc.OpDestroyMkey, 0, func(in []byte) { ifc.DestroyMkeyInMkeyIndex.Set(in, uint64(m.key>>8)) })
		m.key = m.register(base, uint64(n)*pageBytes, m.pages(base, n+n%2), func([]byte) {})
		canary := m.mem[n*pageBytes:]
		fillPattern(canary, 3)
		want := bytes.Clone(canary)
		var q *testQP
		switch which % 3 {
		case 0:
			q, _ = pair(m, m, ifc.QpTypeRc)
		case 1:
			q, _ = kernelPair(m, ifc.QpTypeRc)
		case 2:
			q = m.umrQP()
		}
		key := m.freeKey(uint64(which/3)%ifc.MkcModeKsm, uint64(which/9)) // parts of a KSM may be missing, which the driver is to bring
		u := umr{key: key, flags: flags, mask: mask, offset: offset, list: list[:min(len(list), 512)&^63], mkc: func(to []byte) { copy(to, mkc) }}
		if flags&umrInline == 0 {
			u.at, u.lkey = base, all
			copy(m.mem, u.list)
		}
		for range 2 {
			u.post(q)
		}
		out, _ := m.mustRun(ifc.OpQueryMkey, 0, func(in []byte) { ifc.QueryMkeyInMkeyIndex.Set(in, uint64(key>>8)) })
		ctx := ifc.QueryMkeyOutMemoryKeyMkeyEntry.At(out)
		for _, to := range []uint64{ifc.MkcStartAddr.Get(ctx), ifc.MkcStartAddr.Get(ctx) + ifc.MkcLen.Get(ctx) - 8} {
			x, y := pair(m, m, ifc.QpTypeRc)
			x.write(1, to, key&^0xff|ifc.MkcMkey70.U32(ctx))
			x.post(ifc.OpcodeRdmaRead, update, 0, remoteSeg(to, key&^0xff|ifc.MkcMkey70.U32(ctx)), seg(8, m.key, base+1024))
			y.post(ifc.OpcodeSendInval, update, key&^0xff|ifc.MkcMkey70.U32(ctx))
		}
		if which%3 == 0 && !bytes.Equal(canary, want) {
			t.Error("memory that is not the program's is written")
		}
	})
}

//go:build linux

package mlx5

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// unhex returns the bytes of hexadecimal digits, with zeros for what is missing in whole blocks.
func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, (block-len(b)%block)%block)...)
}

// TestSendRequests compares requests with bytes that follow from struct mlx5_wqe_ctrl_seg and the
// segments of include/linux/mlx5/qp.h. libmlx5's are the same, see tests/interop.
func TestSendRequests(t *testing.T) {
	two := []verbs.SGE{{Addr: 0x1122334455667788, Length: 0x1000, LKey: 0xaabbccdd}, {Addr: 0x99, Length: 3, LKey: 7}}
	eight := []verbs.SGE{{Addr: 0x40, Length: 8, LKey: 9}}
	const (
		remote  = "0102030405060708 0a0a0b0b 00000000"
		segment = "00001000 aabbccdd 1122334455667788  00000003 00000007 0000000000000099"
	)
	for _, test := range []struct {
		name string
		typ  verbs.QPType
		wr   verbs.SendWR
		want string // the first word without the index
	}{
		{"send", verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, SGL: two}, "0a 0a0b0c03 00000000 00000000" + segment},
		{"signaled, solicited, fenced", verbs.UC, verbs.SendWR{
			Opcode: verbs.OpSend, SGL: two, Flags: verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence,
		}, "0a 0a0b0c03 0000008a 00000000" + segment},
		{"immediate", verbs.RC, verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 0x01020304}, "0b 0a0b0c01 00000000 01020304"},
		{"invalidate", verbs.RC, verbs.SendWR{Opcode: verbs.OpSendInv}, "01 0a0b0c01 00000000 0a0a0b0b"},
		{"write", verbs.UC, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: two}, "08 0a0b0c04 00000000 00000000" + remote + segment},
		{"write with immediate", verbs.RC, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: 5}, "09 0a0b0c02 00000000 00000005" + remote},
		{"read", verbs.RC, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: two[1:]}, "10 0a0b0c03 00000000 00000000" + remote + segment[36:]},
		{"compare and swap", verbs.RC, verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: 2, Swap: 3}, SGL: eight},
			"11 0a0b0c04 00000000 00000000" + remote + "0000000000000003 0000000000000002 00000008 00000009 0000000000000040"},
		{"fetch and add", verbs.RC, verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 2, Swap: 3}, SGL: eight},
			"12 0a0b0c04 00000000 00000000" + remote + "0000000000000002 0000000000000000 00000008 00000009 0000000000000040"},
		{"without empty SGEs", verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{LKey: 5}, two[1], {Addr: 1}}},
			"0a 0a0b0c02 00000000 00000000" + segment[36:]},
		{"inline", verbs.RC, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: []byte("abc"), Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("d"), nil, []byte("ef")}}},
			"08 0a0b0c03 00000000 00000000" + remote + "80000006 616263646566"},
		{"inline without data", verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{nil, {}}}}, "0a 0a0b0c01 00000000 00000000"},
		{"datagram", verbs.UD, verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 4, SGL: two[1:], To: verbs.UDAddr{AH: 1, QPNum: 0x112233, QKey: 0x8899aabb}},
			"0b 0a0b0c05 00000000 00000004  8899aabb 00000000 80112233 86 00 d555 00000000 020304050607 09 40" +
				"00301555 20010db8000000000000000000000001" + segment[36:]},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, Driver{})
			a := f.ah(t, new(addressHandle))
			a.setRoCE(&verbs.AddressVector{
				SL: 3, StaticRate: 3, TrafficClass: 9, HopLimit: 64, SGIDIndex: 3, FlowLabel: 0x1555,
				DGID: verbs.GID{0x20, 1, 0xd, 0xb8, 15: 1},
			}, verbs.GIDRoCEv2, [6]byte{2, 3, 4, 5, 6, 7})
			q := f.qp(t, test.typ, f.cq(t, 8), verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 4, MaxInline: 64}, nil).send
			test.wr.RemoteAddr, test.wr.RKey = 0x0102030405060708, 0x0a0a0b0b
			want := unhex(t, "0000 00"+test.want)
			n := uint32(len(want) / block)
			for i := range uint32(3) {
				clear(unsafe.Slice((*byte)(q.base), q.bytes))
				from := q.put
				be.PutUint16(want[1:], uint16(from))
				if posted, err := q.Post([]verbs.SendWR{test.wr}); posted != 1 || err != nil {
					t.Fatal(posted, err)
				}
				if got := q.blocks(from, n); !bytes.Equal(got, want) {
					t.Fatalf("request %d:\n%swant\n%s", i, hex.Dump(got), hex.Dump(want))
				}
				if q.put != from+n || swap32(q.record.Load()) != q.put {
					t.Fatalf("put %d, record %d, want %d", q.put, swap32(q.record.Load()), from+n)
				}
				// The second register of the second page, which has no halves.
				if got := f.pages[os.Getpagesize()+uarSend+fakeRegister:][:8]; !bytes.Equal(got, want[:8]) {
					t.Fatalf("register %x, want %x", got, want[:8])
				}
			}
		})
	}
}

// TestInline posts inline data of all lengths, alone and behind another request.
func TestInline(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 10, MaxInline: 100}, nil)
	data := make([]byte, 100)
	for i := range data {
		data[i] = byte(i + 1)
	}
	for length := 1; length <= len(data); length++ {
		for _, opcode := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite} {
			for n := 1; n <= 2; n++ {
				from, at := p.send.put, int(operationOf(opcode).head)
				blocks := uint32(at+inlineHead+length+block-1) / block
				wrs := slices.Repeat([]verbs.SendWR{{Opcode: opcode, Flags: verbs.SendSignaled, Inline: data[:length]}}, n)
				before := p.send.blocks(from+uint32(n-1)*blocks, blocks)
				if got, err := p.send.Post(wrs); got != n || err != nil || p.send.put != from+uint32(n)*blocks {
					t.Fatalf("%d of %d, %d blocks: %v", got, n, p.send.put-from, err)
				}
				from = p.send.put - blocks
				b := p.send.blocks(from, blocks)
				want := append(be.AppendUint32(nil, uint32(length)|1<<31), data[:length]...)
				size := len(want)
				if n == 1 && blocks == 1 { // the rest of the last word is cleared
					want = append(want, make([]byte, -size&7)...)
				}
				if !bytes.Equal(b[at:], append(want, before[at+len(want):]...)) || int(b[7]) != (at+size+15)/16 {
					t.Fatalf("%v of %d bytes, %d requests:\n%s", opcode, length, n, hex.Dump(b))
				}
				cq.put(completion(p, uint16(from)), cqeRequest)
				if wcs := cq.poll(); len(wcs) != 1 {
					t.Fatalf("%+v", wcs)
				}
			}
		}
	}
}

// TestSendWrap posts requests of several blocks, whose data goes on at the start of the queue,
// until each has begun at each block.
func TestSendWrap(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 5, MaxSendSGE: 8, MaxInline: 100}, nil)
	q := p.send
	sgl := make([]verbs.SGE, 8)
	for i := range sgl {
		sgl[i] = verbs.SGE{Addr: uint64(i), Length: 1 + uint32(i), LKey: 5}
	}
	data := []byte(strings.Repeat("0123456789", 10))
	for i := range 200 {
		wr, size := verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, SGL: sgl[:1+i%8]}, ctrlSize+remoteSize+segmentSize*(1+i%8)
		if i%3 == 0 {
			wr = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Inline: data[:i%50], Args: &verbs.SendArgs{InlineList: [][]byte{data[i%50 : 100]}}}
			size = ctrlSize + inlineHead + 100
		}
		from := q.put
		if n, err := q.Post([]verbs.SendWR{wr}); n != 1 || err != nil {
			t.Fatal(i, n, err)
		}
		b := q.blocks(from, q.put-from)
		if units := int(b[7]); units != (size+unit-1)/unit || int(q.put-from) != (size+block-1)/block {
			t.Fatalf("request %d of %d bytes: %d units in %d blocks", i, size, units, q.put-from)
		}
		if wr.SGL == nil {
			if got := b[ctrlSize+inlineHead:][:100]; !bytes.Equal(got, data) {
				t.Fatalf("request %d at block %d: %q", i, from&q.mask, got)
			}
		} else {
			for k, s := range wr.SGL {
				if got := b[ctrlSize+remoteSize+k*segmentSize:]; be.Uint32(got) != s.Length || be.Uint64(got[8:]) != s.Addr {
					t.Fatalf("request %d at block %d: segment %d is %x", i, from&q.mask, k, got[:segmentSize])
				}
			}
		}
		cq.put(completion(p, uint16(from)), cqeRequest)
		if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != uint64(i) || wcs[0].Status != 0 {
			t.Fatalf("request %d: %+v", i, wcs)
		}
	}
}

// TestSendRoom fills the queue. Its room is freed by completions, one of which completes all
// requests before it.
func TestSendRoom(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 4}, nil) // of two blocks each
	q, wrs := p.send, make([]verbs.SendWR, 20)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 1}}}
	}
	if n, err := q.Post(wrs); n != q.Cap() || n != 8 || err != verbs.ErrQueueFull {
		t.Fatal(n, err)
	}
	if n, err := q.Post(wrs); n != 0 || err != verbs.ErrQueueFull {
		t.Fatal(n, err)
	}
	cq.put(completion(p, 4), cqeRequest)
	if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != 4 {
		t.Fatalf("%+v", wcs)
	}
	if n, err := q.Post(wrs); n != 5 || err != verbs.ErrQueueFull {
		t.Fatal(n, err)
	}
}

// TestPostRefused posts requests that the device would fail, behind one that it takes.
func TestPostRefused(t *testing.T) {
	sge := verbs.SGE{Length: 8, LKey: 1}
	long := verbs.SGE{Length: 1 << 30}
	for _, test := range []struct {
		typ  verbs.QPType
		wr   verbs.SendWR
		want error
	}{
		{verbs.RC, verbs.SendWR{}, verbs.ErrNoOpcode},
		{verbs.RC, verbs.SendWR{Opcode: 99}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW}, verbs.ErrBind},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Length: 1<<31 + 1}}}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{}}}, unix.EINVAL},
		{verbs.UC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Type: verbs.MWType2}}}, unix.EINVAL},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Type: verbs.MWType1, Length: 1, Access: verbs.AccessZeroBased}}}, unix.EINVAL},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Length: 1}}, SGL: []verbs.SGE{sge}}, verbs.ErrTooManySGEs},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Length: 1}, InlineList: [][]byte{{1}}}}, verbs.ErrInlineOp},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpLocalInv, Inline: []byte{1}}, verbs.ErrInlineOp},
		{verbs.UD, verbs.SendWR{Opcode: verbs.OpLocalInv}, errors.ErrUnsupported},
		{verbs.UD, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{Length: 1}}}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpRDMAReadInv}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpFlush}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: make([]byte, 8)}, errors.ErrUnsupported},
		{verbs.UC, verbs.SendWR{Opcode: verbs.OpRDMARead}, errors.ErrUnsupported},
		{verbs.UC, verbs.SendWR{Opcode: verbs.OpSendInv}, errors.ErrUnsupported},
		{verbs.UD, verbs.SendWR{Opcode: verbs.OpRDMAWrite}, errors.ErrUnsupported},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 5)}, verbs.ErrTooManySGEs},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{long, {Length: 1}}}, verbs.ErrMessageTooLong},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 1 << 31}}}, verbs.ErrMessageTooLong},
		{verbs.UD, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 4097}}}, verbs.ErrMessageTooLong},
		{verbs.UD, verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 33)}, verbs.ErrInlineTooLong},
		{verbs.DCI, verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: []byte{1}}, verbs.ErrInlineOp},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 33)}, verbs.ErrInlineTooLong},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{make([]byte, 32), {1}}}}, verbs.ErrInlineTooLong},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte{1}, SGL: []verbs.SGE{sge}}, verbs.ErrInlineSGL},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: []byte{1}}, verbs.ErrInlineOp},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{sge, sge}}, verbs.ErrAtomicSGL},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpCompareSwap}, verbs.ErrAtomicSGL},
		{verbs.RC, verbs.SendWR{Opcode: verbs.OpCompareSwap, SGL: []verbs.SGE{{Length: 4}, {Length: 4}}}, verbs.ErrAtomicSGL},
	} {
		f := newFake(t, Driver{})
		q := f.qp(t, test.typ, f.cq(t, 8), verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 4, MaxInline: 32}, nil).send
		test.wr.To.AH = f.ah(t, new(addressHandle)).num
		wrs := []verbs.SendWR{{ID: 7, Opcode: verbs.OpSend, To: test.wr.To}, test.wr}
		const want = 1
		n, err := q.Post(wrs)
		if _, ok := errors.AsType[*verbs.PostError](err); !ok || n != want || !errors.Is(err, test.want) || swap32(q.record.Load()) != uint32(want) {
			t.Errorf("%v %v: %d posted, %v", test.typ, test.wr.Opcode, n, err)
		}
		if n, err := q.Post([]verbs.SendWR{test.wr}); n != 0 || !errors.Is(err, test.want) {
			t.Errorf("%v %v alone: %d posted, %v", test.typ, test.wr.Opcode, n, err)
		}
	}
	f := newFake(t, Driver{})
	p := f.qp(t, verbs.UD, f.cq(t, 8), verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}, nil)
	if n, err := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend, To: verbs.UDAddr{AH: 1}}}); n != 0 || err == nil {
		t.Errorf("datagram without address: %d, %v", n, err)
	}
	if n, err := p.recv.Post(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrNoRecvRoom) {
		t.Errorf("receive without room: %d, %v", n, err)
	}
	p.send.State = verbs.StateInit
	if n, err := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}); n != 0 || !errors.Is(err, verbs.ErrState) {
		t.Errorf("before RTS: %d, %v", n, err)
	}
}

// unreadable returns memory that cannot be read.
func unreadable(t *testing.T) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// TestPostPanics posts requests whose data cannot be read, alone and behind another one: nothing is
// posted, and the queue can be used again.
func TestPostPanics(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UD, verbs.DCI} {
		t.Run(typ.String(), func(t *testing.T) { testPostPanics(t, typ) })
	}
}

func testPostPanics(t *testing.T, typ verbs.QPType) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, typ, cq, verbs.QPCap{MaxSendWR: 4, MaxInline: 64}, nil)
	to := verbs.UDAddr{AH: f.ah(t, new(addressHandle)).num}
	mem := unreadable(t)
	for _, length := range []int{1, 8, 64} {
		wrs := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, To: to}, {ID: 2, Opcode: verbs.OpSend, Inline: mem[:length], To: to}}
		for _, wrs := range [][]verbs.SendWR{wrs, wrs[1:]} {
			func() {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
				defer func() {
					if recover() == nil {
						t.Error("no panic")
					}
				}()
				p.send.Post(wrs)
			}()
		}
	}
	for i := range 10 {
		from := p.send.put
		if n, err := p.send.Post([]verbs.SendWR{{ID: uint64(i), Opcode: verbs.OpSend, To: to}}); n != 1 || err != nil || int(from) != i || swap32(p.send.record.Load()) != uint32(i)+1 {
			t.Fatalf("request %d: block %d, record %d, %v", i, from, swap32(p.send.record.Load()), err)
		}
		cq.put(completion(p, uint16(from)), cqeRequest)
		if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != uint64(i) {
			t.Fatalf("%+v", wcs)
		}
	}
}

// TestBlueFlame posts with a register that takes whole requests: single ones that fit in a half of
// it are copied to both halves in turn, of others the first 8 bytes.
func TestBlueFlame(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 20}, nil)
	q := p.send
	mem := f.pages[:2*fakeRegister/2]
	p.reg = &register{mem: unsafe.Pointer(unsafe.SliceData(mem)), half: fakeRegister / 2}
	sgl := slices.Repeat([]verbs.SGE{{Addr: 0x0102030405060708, Length: 1, LKey: 0x11223344}}, 20)
	for i := range 40 {
		clear(mem)
		wrs := []verbs.SendWR{{ID: uint64(i), Opcode: verbs.OpSend, SGL: sgl[:1+i%20]}}
		if i%7 == 6 {
			wrs = append(wrs, wrs[0])
		}
		from := q.put
		if n, err := q.Post(wrs); n != len(wrs) || err != nil {
			t.Fatal(n, err)
		}
		want := make([]byte, len(mem))
		half := want[i%2*fakeRegister/2:][:fakeRegister/2]
		blocks := q.put - from
		if size := int(blocks) * block; len(wrs) == 1 && size <= len(half) {
			copy(half, q.blocks(from, blocks))
		} else {
			copy(half, q.blocks(from+blocks-blocks/uint32(len(wrs)), 1)[:8])
		}
		if !bytes.Equal(mem, want) {
			t.Fatalf("request %d, %d blocks at %d:\n%swant\n%s", i, blocks, from&q.mask, hex.Dump(mem), hex.Dump(want))
		}
		cq.put(completion(p, uint16(q.put-blocks/uint32(len(wrs)))), cqeRequest)
		if wcs := cq.poll(); len(wcs) != 1 {
			t.Fatalf("%+v", wcs)
		}
	}
	p.reg = nil
}

// TestRegistersOfPages finds the registers of all UARs that a page of 16 KiB has.
func TestRegistersOfPages(t *testing.T) {
	f := newFake(t, Driver{})
	f.resp.NumUarsPerPage = 4
	seen := map[uintptr]uint32{}
	for _, r := range f.regs.halves(&uar{mem: unsafe.Pointer(unsafe.SliceData(f.pages)), page: 20}) {
		if r.half != fakeRegister/2 {
			t.Errorf("halves of %d bytes", r.half)
		}
		seen[uintptr(r.mem)-uintptr(unsafe.Pointer(unsafe.SliceData(f.pages)))] = r.page
	}
	want := map[uintptr]uint32{}
	for n := range uintptr(4) {
		want[n*4096+0x800], want[n*4096+0xa00] = 20+uint32(n), 20+uint32(n)
	}
	if !maps.Equal(seen, want) {
		t.Errorf("UARs by the offset of a register: %v, want %v", seen, want)
	}
}

// TestSizes checks the sizes of queues that the kernel is told.
func TestSizes(t *testing.T) {
	f := newFake(t, Driver{})
	for _, test := range []struct {
		typ                       verbs.QPType
		cap                       verbs.QPCap
		sends, recvs, shift, room int
	}{
		{verbs.RC, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 500, MaxSendSGE: 1, MaxRecvSGE: 1}, 4, 512, 4, 3},
		{verbs.RC, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 2, MaxRecvSGE: 3}, 64, 1, 6, 64},
		{verbs.RC, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 3, MaxSendSGE: 3, MaxRecvSGE: 2}, 128, 4, 5, 64},
		{verbs.RC, verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 1, MaxSendSGE: 30, MaxRecvSGE: 32}, 32, 1, 9, 3},
		{verbs.UD, verbs.QPCap{MaxSendWR: 100, MaxRecvWR: 1, MaxSendSGE: 1}, 256, 4, 4, 127},
		{verbs.UD, verbs.QPCap{MaxSendWR: 10, MaxInline: 940}, 256, 0, 0, 15},
		{verbs.RC, verbs.QPCap{MaxSendWR: 10, MaxInline: 972}, 256, 0, 0, 15},
		{verbs.RC, verbs.QPCap{}, 0, 0, 0, 0},
	} {
		sends, recvs, err := f.planQP(initOf(test.typ, test.cap))
		if err != nil || sends.entries != test.sends || recvs.entries != test.recvs || sends.requests != test.room ||
			recvs.entries > 0 && recvs.stride != 1<<test.shift {
			t.Errorf("%v %+v: %+v, %+v, %v", test.typ, test.cap, sends, recvs, err)
		}
	}
	for _, bad := range []verbs.QPCap{
		{MaxSendWR: 1, MaxSendSGE: 62}, {MaxSendWR: 1, MaxSendSGE: math.MaxInt}, {MaxSendWR: 1, MaxInline: 973},
		{MaxSendWR: 1<<15 + 1}, {MaxSendWR: 1<<14 + 1, MaxSendSGE: 3}, {MaxRecvWR: 1<<15 + 1}, {MaxRecvWR: 1, MaxRecvSGE: 33},
	} {
		if _, _, err := f.planQP(initOf(verbs.RC, bad)); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// BenchmarkPost posts requests, with the store to a register.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 16} {
		for name, wr := range map[string]verbs.SendWR{
			"SGE":    {Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: 1 << 20, Length: 64, LKey: 5}}},
			"inline": {Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: make([]byte, 32)},
		} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				f := newFake(b, Driver{})
				q := f.qp(b, verbs.RC, f.cq(b, 8), verbs.QPCap{MaxSendWR: 256, MaxSendSGE: 1, MaxInline: 32}, nil).send
				wrs := slices.Repeat([]verbs.SendWR{wr}, n)
				b.ReportAllocs()
				for b.Loop() {
					if got, err := q.Post(wrs); got != n || err != nil {
						b.Fatal(got, err)
					}
					q.tail.Store(q.head.Load())
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
			})
		}
	}
}

//go:build linux

package mlx5

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
)

// TestUMRRequests compares requests, at each block of a queue, with bytes that follow from struct
// mlx5_wqe_umr_ctrl_seg, struct mlx5_mkey_seg and struct mlx5_klm of qp.h, as libmlx5's set_bind_wr
// fills them.
func TestUMRRequests(t *testing.T) {
	const (
		pad  = "00000000 00000000 00000000 00000000"
		free = "40000000 ffffff00 00000000 00000000" + pad + pad + pad
		list = pad + pad + "80000000 aabbccdd 1122334455667788" + pad + pad + pad
	)
	bind := verbs.MWBind{RKey: 0x01020304, NewRKey: 0x01020305, LKey: 0xaabbccdd, Addr: 0x1122334455667788, Length: 1 << 31, Access: verbs.AccessRemoteWrite}
	type1, unbind, all, zeroBased := bind, bind, bind, bind
	type1.Type, unbind.Type, all.Type = verbs.MWType1, verbs.MWType1, verbs.MWType2
	unbind.Length = 0
	all.Access = verbs.AccessAll | verbs.AccessMWBind
	zeroBased.Access = verbs.AccessZeroBased | verbs.AccessRemoteRead
	for _, test := range []struct {
		name string
		wr   verbs.SendWR
		want string // behind the control segment
	}{
		{"type 2", verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &bind}}, "b0000000 00040000 00000000203c6041" + pad + pad +
			"00002000 0a0b0c05 00000000 00000000 1122334455667788 0000000080000000" + list},
		{"all rights", verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &all}}, "b0000000 00040000 00000000203c6041" + pad + pad +
			"00007800 0a0b0c05 00000000 00000000 1122334455667788 0000000080000000" + list},
		{"from 0 on", verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &zeroBased}}, "b0000000 00040000 00000000203c6041" + pad + pad +
			"00001000 0a0b0c05 00000000 00000000 0000000000000000 0000000080000000" + list},
		{"type 1", verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &type1}}, "90000000 00040000 00000000203c2041" + pad + pad +
			"00002000 ffffff05 00000000 00000000 1122334455667788 0000000080000000" + list},
		{"type 1 without a range", verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &unbind}}, "90000000 00000000 0000000020002000" + pad + pad +
			"40000000 ffffff05" + free[18:]},
		{"invalidate", verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: 0x01020304}, "98000000 00000000 0000000020006000" + pad + pad + free},
	} {
		for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
			f := newFake(t, Driver{})
			cq := f.cq(t, 16)
			p := f.qp(t, typ, cq, verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 1}, nil)
			q := p.send
			want := unhex(t, "00000025 0a0b0c00 00000000 01020304"+test.want)
			want[7] = byte(len(want) / unit)
			n := uint32(len(want) / block)
			for i := range uint64(50) {
				fill := unsafe.Slice((*byte)(q.base), q.bytes)
				copy(fill, bytes.Repeat([]byte{0xee}, len(fill)))
				from := q.put
				be.PutUint16(want[1:], uint16(from))
				want[ctrlFlags] = 0
				if test.wr.Flags = verbs.SendFlags(i) % 4 << 1; test.wr.Flags&verbs.SendSignaled != 0 {
					want[ctrlFlags] |= 0x08
				}
				if test.wr.Flags&verbs.SendSolicited != 0 {
					want[ctrlFlags] |= 0x02
				}
				test.wr.ID = i
				if posted, err := q.Post([]verbs.SendWR{test.wr}); posted != 1 || err != nil {
					t.Fatal(posted, err)
				}
				if got := q.blocks(from, n); !bytes.Equal(got, want) || q.put != from+n {
					t.Fatalf("%s, %v, %d blocks:\n%swant\n%s", test.name, typ, q.put-from, hex.Dump(got), hex.Dump(want))
				}
				cq.put(completion(p, uint16(from)), cqeRequest)
				// Others follow, so that each block has its turn, and none is behind a UMR request.
				for range 1 + i%2 {
					if _, err := q.Post([]verbs.SendWR{{ID: i, Opcode: verbs.OpSend}}); err != nil {
						t.Fatal(err)
					}
				}
				cq.put(completion(p, uint16(q.put-1)), cqeRequest)
				op := verbs.WCBindMW
				if test.wr.Opcode == verbs.OpLocalInv {
					op = verbs.WCLocalInv
				}
				if wcs := cq.poll(); len(wcs) != 2 || wcs[0] != (verbs.WC{ID: i, Opcode: op, QPNum: fakeQPN}) || wcs[1].Opcode != verbs.WCSend {
					t.Fatalf("%s: %+v", test.name, wcs)
				}
			}
		}
	}
}

// TestFenceBehindUMR: the request behind a UMR request waits for it, whatever becomes of those that
// are posted in between.
func TestFenceBehindUMR(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 1, MaxInline: 64}, nil)
	q := p.send
	send, invalidate := verbs.SendWR{Opcode: verbs.OpSend}, verbs.SendWR{Opcode: verbs.OpLocalInv}
	fenced := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendFence}
	gone := verbs.SendWR{Opcode: verbs.OpSend, Inline: unreadable(t)[:64]}
	wrong := []verbs.SendWR{{}, {Opcode: verbs.OpFlush}, {Opcode: verbs.OpBindMW}, {Opcode: verbs.OpSend, Inline: make([]byte, 65)}}
	const none, umr, full = 0, 0x20, 0x80
	for i, test := range []struct {
		wrs  []verbs.SendWR
		want []byte // flags of the requests
	}{
		{[]verbs.SendWR{send, invalidate, send, send}, []byte{none, none, umr, none}},
		{[]verbs.SendWR{invalidate, invalidate, fenced, send}, []byte{none, umr, full, none}},
		{[]verbs.SendWR{invalidate}, []byte{none}},
		{wrong[0:1], nil},
		{wrong[1:2], nil},
		{wrong[2:3], nil},
		{wrong[3:4], nil},
		{[]verbs.SendWR{send, gone}, nil},
		{[]verbs.SendWR{send, send, wrong[1]}, []byte{umr, none}},
		{[]verbs.SendWR{send}, []byte{none}},
		{[]verbs.SendWR{invalidate, wrong[3]}, []byte{none}},
		{[]verbs.SendWR{send, wrong[3]}, []byte{umr}},
		{[]verbs.SendWR{send}, []byte{none}},
	} {
		from, n := q.put, 0
		func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() { recover() }()
			n, _ = q.Post(test.wrs)
		}()
		var got []byte
		for at := from; at != q.put; at += uint32(q.blocks(at, 1)[7]+3) / 4 {
			got = append(got, q.blocks(at, 1)[ctrlFlags])
		}
		if n != len(test.want) || !bytes.Equal(got, test.want) {
			t.Errorf("list %d: %d requests with flags %#x, want %#x", i, n, got, test.want)
		}
		if n > 0 { // all have completed
			mmap.StoreRelease(&q.tail, q.head.Load())
		}
	}
}

// TestUMRRoom fills queues with requests of all kinds, in lists of any length, which complete by
// ones that succeed or fail. The queue takes them as long as they fit, and loses none.
func TestUMRRoom(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 64)
	for _, sges := range []int{1, 2, 3, 7, 11, 12} {
		for _, most := range []int{1, 3, 10} {
			r := rand.New(rand.NewPCG(uint64(sges), uint64(most)))
			p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: most, MaxSendSGE: sges}, nil)
			q := p.send
			type posted struct {
				id    uint64
				block uint16
				op    verbs.WCOpcode
				room  uint32
			}
			var flight []posted
			room := q.most
			for id := uint64(0); id < 3000; {
				wrs := make([]verbs.SendWR, 1+r.IntN(12))
				for i := range wrs {
					switch wrs[i].ID = id + uint64(i); r.IntN(3) {
					case 0:
						wrs[i].Opcode, wrs[i].Args = verbs.OpBindMW, &verbs.SendArgs{Bind: &verbs.MWBind{Length: 1}}
					case 1:
						wrs[i].Opcode = verbs.OpLocalInv
					case 2:
						wrs[i].Opcode = verbs.OpSend
					}
				}
				at := q.put
				n, err := q.Post(wrs)
				id += uint64(n)
				for i, wr := range wrs {
					size := map[verbs.Opcode]uint32{verbs.OpBindMW: 3, verbs.OpLocalInv: 2, verbs.OpSend: 1}[wr.Opcode]
					need := min((size+q.size-1)/q.size, q.most) // a UMR request fits in any queue that is empty
					if taken := need <= room; taken != (i < n) {
						t.Fatalf("%d SGEs, %d requests: %d of %d requests posted, and there is room for %d when %v comes: %v", sges, most, n, len(wrs), room, wr.Opcode, err)
					} else if !taken {
						break
					}
					room -= need
					op := map[verbs.Opcode]verbs.WCOpcode{verbs.OpBindMW: verbs.WCBindMW, verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpSend: verbs.WCSend}[wr.Opcode]
					flight = append(flight, posted{wr.ID, uint16(at), op, need})
					at += size
				}
				if (n < len(wrs)) != (err == verbs.ErrQueueFull) || at != q.put {
					t.Fatalf("%d of %d requests up to block %d, not %d: %v", n, len(wrs), q.put, at, err)
				}
				k := r.IntN(len(flight) + 1)
				if n == 0 {
					k = len(flight)
				}
				if k == 0 {
					continue
				}
				last := flight[k-1]
				for _, p := range flight[:k] {
					room += p.room
				}
				flight = flight[k:]
				e, want := completion(p, last.block), verbs.WC{ID: last.id, Opcode: last.op, QPNum: fakeQPN}
				opcode := uint32(cqeRequest)
				if r.IntN(4) == 0 {
					opcode, want.Status, want.VendorErr = cqeRequestErr, verbs.WCMWBindErr, 0x55
					e[cqeSyndrome], e[cqeVendor] = 6, 0x55
				}
				cq.put(e, opcode)
				cq.put(e, cqeRequest) // once more
				if wcs := cq.poll(); len(wcs) != 1 || wcs[0] != want {
					t.Fatalf("%+v, want %+v", wcs, want)
				}
			}
			wcs := q.Flush()
			for i, wc := range wcs {
				if wc != (verbs.WC{ID: flight[i].id, Status: verbs.WCFlushErr, QPNum: fakeQPN}) {
					t.Errorf("%d: %+v", i, wc)
				}
			}
			if len(wcs) != len(flight) {
				t.Errorf("%d of %d requests complete by the loss", len(wcs), len(flight))
			}
		}
	}
}

//go:build linux

package rxe

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// TestEncodedSends compares slots of the queue with what struct rxe_send_wqe defines, also for requests of the path for
// simple ones.
func TestEncodedSends(t *testing.T) {
	const most, mtu = 1 << 30, 1024
	sge := verbs.SGE{Addr: 0x1122334455667788, Length: 100, LKey: 0xabcd}
	at := func(length uint32) []verbs.SGE { return []verbs.SGE{{Addr: 1 << 20, Length: length, LKey: 5}} }
	one, five, atomic := []verbs.SGE{sge}, []verbs.SGE{sge, sge, sge, sge, sge}, at(8)
	data := bytes.Repeat([]byte{1, 2, 3, 4}, 16)
	all := verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence
	args := &verbs.SendArgs{CompareAdd: 1 << 60, Swap: 1 << 61}
	bind := &verbs.SendArgs{Bind: &verbs.MWBind{Addr: 1 << 50, Length: 1 << 40, LKey: 21, RKey: 22, NewRKey: 23, Access: verbs.AccessRemoteRead}}
	flush := &verbs.SendArgs{Flush: verbs.Flush{Length: 77, Type: 2, Level: 1}}
	const rkey, addr, imm = 0x77665544, 0x1234567890, 0x01020304
	rdma := func(w *abi.RxeSendWqe) []any { return []any{w.Wr.Wr.Rdma().RemoteAddr, w.Wr.Wr.Rdma().Rkey} }
	immediate := func(w *abi.RxeSendWqe) []any { return []any{[4]byte(mmap.Bytes(w.Wr.Ex.ImmData()))} }
	invalidates := func(w *abi.RxeSendWqe) []any { return []any{*w.Wr.Ex.InvalidateRkey()} }
	toRDMA, network := []any{uint64(addr), uint32(rkey)}, [4]byte{1, 2, 3, 4}
	for name, test := range map[string]struct {
		typ    verbs.QPType
		wr     verbs.SendWR
		opcode uint32 // enum ib_wr_opcode
		fields func(*abi.RxeSendWqe) []any
		want   []any
		err    error
	}{
		"send":                {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one}, opcode: 2},
		"send with flags":     {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one, Flags: all}, opcode: 2},
		"send without fence":  {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one, Flags: all &^ verbs.SendFence}, opcode: 2},
		"send of nothing":     {wr: verbs.SendWR{Opcode: verbs.OpSend}, opcode: 2},
		"send of an empty":    {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(0)}, opcode: 2},
		"send of four SGEs":   {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: five[:4]}, opcode: 2},
		"send of five SGEs":   {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: five}, err: verbs.ErrTooManySGEs},
		"longest send":        {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(most)}, opcode: 2},
		"too long send":       {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(most + 1)}, err: verbs.ErrMessageTooLong},
		"too long in parts":   {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: append(at(most), at(1)...)}, err: verbs.ErrMessageTooLong},
		"inline send":         {wr: verbs.SendWR{Opcode: verbs.OpSend, Inline: data}, opcode: 2},
		"inline list":         {wr: verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{data[:5], data[5:]}}}, opcode: 2},
		"too long inline":     {wr: verbs.SendWR{Opcode: verbs.OpSend, Inline: append(data, 0)}, err: verbs.ErrInlineTooLong},
		"inline read":         {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: data}, err: verbs.ErrInlineOp},
		"inline atomic":       {wr: verbs.SendWR{Opcode: verbs.OpFetchAdd, Inline: data[:8]}, err: verbs.ErrInlineOp},
		"flag of inline data": {wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one, Flags: provider.SendInline}, opcode: 2},
		"UC send":             {typ: verbs.UC, wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one}, opcode: 2},
		"UC read":             {typ: verbs.UC, wr: verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: one}, err: verbs.ErrOpcode},
		"UC write":            {typ: verbs.UC, wr: verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: one}, opcode: 0, fields: rdma, want: toRDMA},
		"UD send": {typ: verbs.UD, wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: one, To: verbs.UDAddr{QPNum: 3, QKey: 4, AH: 5}}, opcode: 2,
			fields: func(w *abi.RxeSendWqe) []any {
				u := w.Wr.Wr.Ud()
				return []any{u.RemoteQpn, u.RemoteQkey, u.PkeyIndex, u.AhNum}
			}, want: []any{uint32(3), uint32(4), uint16(0), uint32(5)}},
		"longest UD send":    {typ: verbs.UD, wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(mtu)}, opcode: 2},
		"too long UD send":   {typ: verbs.UD, wr: verbs.SendWR{Opcode: verbs.OpSend, SGL: at(mtu + 1)}, err: verbs.ErrMessageTooLong},
		"UD write":           {typ: verbs.UD, wr: verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: one}, err: verbs.ErrOpcode},
		"send immediate":     {wr: verbs.SendWR{Opcode: verbs.OpSendImm, SGL: one}, opcode: 3, fields: immediate, want: []any{network}},
		"send inv":           {wr: verbs.SendWR{Opcode: verbs.OpSendInv, SGL: one}, opcode: 9, fields: invalidates, want: []any{uint32(rkey)}},
		"write":              {wr: verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: one}, opcode: 0, fields: rdma, want: toRDMA},
		"fenced write":       {wr: verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: one, Flags: all}, opcode: 0, fields: rdma, want: toRDMA},
		"write immediate":    {wr: verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, SGL: one}, opcode: 1, fields: immediate, want: []any{network}},
		"address of it":      {wr: verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, SGL: one}, opcode: 1, fields: rdma, want: toRDMA},
		"read":               {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: one}, opcode: 4, fields: rdma, want: toRDMA},
		"read of two SGEs":   {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: five[:2]}, opcode: 4, fields: rdma, want: toRDMA},
		"fenced read":        {wr: verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: one, Flags: all}, opcode: 4, fields: rdma, want: toRDMA},
		"local invalidate":   {wr: verbs.SendWR{Opcode: verbs.OpLocalInv}, opcode: 7, fields: invalidates, want: []any{uint32(rkey)}},
		"invalidate of SGE":  {wr: verbs.SendWR{Opcode: verbs.OpLocalInv, SGL: one}, err: verbs.ErrTooManySGEs},
		"inline invalidate":  {wr: verbs.SendWR{Opcode: verbs.OpLocalInv, Inline: data}, err: verbs.ErrInlineOp},
		"bind without a MW":  {wr: verbs.SendWR{Opcode: verbs.OpBindMW}, err: verbs.ErrBind},
		"atomic of 7 bytes":  {wr: verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: at(7), Args: args}, err: verbs.ErrAtomicSGL},
		"atomic of two SGEs": {wr: verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: append(at(4), at(4)...), Args: args}, err: verbs.ErrAtomicSGL},
		"atomic of no bytes": {wr: verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: args}, err: verbs.ErrAtomicSGL},
		"compare and swap": {wr: verbs.SendWR{Opcode: verbs.OpCompareSwap, SGL: atomic, Args: args, Flags: all}, opcode: 5,
			fields: func(w *abi.RxeSendWqe) []any {
				a := w.Wr.Wr.Atomic()
				return []any{a.RemoteAddr, a.CompareAdd, a.Swap, a.Rkey}
			}, want: []any{uint64(addr), uint64(1 << 60), uint64(1 << 61), uint32(rkey)}},
		"fetch and add": {wr: verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: atomic, Args: args, Flags: all}, opcode: 6,
			fields: func(w *abi.RxeSendWqe) []any { return []any{w.Wr.Wr.Atomic().CompareAdd} }, want: []any{uint64(1 << 60)}},
		"bind": {wr: verbs.SendWR{Opcode: verbs.OpBindMW, Args: bind}, opcode: 8,
			fields: func(w *abi.RxeSendWqe) []any {
				m := w.Wr.Wr.Mw()
				return []any{m.Addr, m.Length, m.MrLkey, m.MwRkey, m.Rkey, m.Access}
			}, want: []any{uint64(1 << 50), uint64(1 << 40), uint32(21), uint32(22), uint32(23), uint32(verbs.AccessRemoteRead)}},
		"flush": {wr: verbs.SendWR{Opcode: verbs.OpFlush, Args: flush}, opcode: uint32(verbs.OpFlush) - 1,
			fields: func(w *abi.RxeSendWqe) []any {
				f := w.Wr.Wr.Flush()
				return []any{f.RemoteAddr, f.Length, f.Rkey, f.Type, f.Level, w.Dma.Length, w.Dma.Resid}
			}, want: []any{uint64(addr), uint32(77), uint32(rkey), uint8(2), uint8(1), uint32(77), uint32(77)}},
		"atomic write":            {wr: verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: data[:8], Flags: all}, opcode: uint32(verbs.OpAtomicWrite) - 1, fields: rdma, want: toRDMA},
		"atomic write of 7 bytes": {wr: verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: data[:7]}, err: verbs.ErrAtomicWrite},
		"atomic write of an SGE":  {wr: verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: data[:8], SGL: one}, err: verbs.ErrAtomicWrite},
		"atomic write of a list":  {wr: verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: data[:8], Args: &verbs.SendArgs{InlineList: [][]byte{{1}}}}, err: verbs.ErrAtomicWrite},
		"read and invalidate":     {wr: verbs.SendWR{Opcode: verbs.OpRDMAReadInv, SGL: one}, err: verbs.ErrOpcode},
		"unknown":                 {wr: verbs.SendWR{Opcode: 250, SGL: one}, err: verbs.ErrOpcode},
	} {
		q := fakeQueue(t, 8)
		if test.typ == 0 {
			test.typ = verbs.RC
		}
		dev := &provider.Device{FD: q.dev.FD, Attr: verbs.DeviceAttr{CapFlags: abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL | abi.IB_UVERBS_DEVICE_ATOMIC_WRITE}, Port: verbs.PortAttr{MaxMessage: most, ActiveMTU: 3}}
		info := provider.QPInfo{QPNum: 17, Cap: verbs.QPCap{MaxSendSGE: 4, MaxInline: 64}}
		for i := range uint32(8) {
			for j := range 512 {
				*(*byte)(unsafe.Add(q.Slot(i), j)) = 0xff
			}
		}
		q, err := newSendQueue(q.ring, &provider.QPInit{Type: test.typ}, info, dev)
		if err != nil {
			t.Fatal(err)
		}
		q.State = verbs.StateRTS
		wr := test.wr
		wr.ID, wr.RKey, wr.RemoteAddr, wr.Imm = 0x99aabbccddeeff00, rkey, addr, imm
		n, err := q.Post([]verbs.SendWR{wr, wr})
		if test.err != nil {
			if refused, ok := errors.AsType[*verbs.PostError](err); n != 0 || !errors.Is(err, test.err) || !ok || refused.ID != wr.ID || q.LoadProducer() != 0 {
				t.Errorf("%s: posted %d: %v, want %v", name, n, err, test.err)
			}
			q.doorbell.Close()
			continue
		}
		if n != 2 || err != nil || q.LoadProducer() != 2 {
			t.Fatalf("%s: posted %d: %v", name, n, err)
		}
		for i := range uint32(2) {
			w := (*abi.RxeSendWqe)(q.Slot(i))
			flags, length := uint32(wr.Flags&^provider.SendInline), uint32(provider.SumLengths(wr.SGL))
			payload := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))), 128)
			if provider.HasInline(&wr) {
				length = uint32(len(wr.Inline))
				if wr.Inline == nil {
					length = uint32(len(data))
				}
				if !bytes.Equal(payload[:length], data[:length]) || payload[length] != 0xff {
					t.Errorf("%s: inline data %v", name, payload)
				}
				if wr.Opcode != verbs.OpAtomicWrite {
					flags |= uint32(provider.SendInline)
				}
			} else if got := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(unsafe.SliceData(payload))), len(wr.SGL)); !slices.Equal(got, wr.SGL) {
				t.Errorf("%s: SGEs %+v", name, got)
			}
			switch wr.Opcode {
			case verbs.OpRDMARead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
				flags &^= uint32(verbs.SendFence)
			case verbs.OpFlush:
				length = 77
			}
			got := []any{w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags, w.Status, w.State, w.Iova, w.HasRdAtomic, w.Dma}
			want := []any{wr.ID, test.opcode, flags, uint32(0), uint32(0), uint64(addr), uint32(0), abi.RxeDmaInfo{Length: length, Resid: length, NumSge: uint32(len(wr.SGL)), Reserved: w.Dma.Reserved}}
			if test.fields != nil {
				got, want = append(got, test.fields(w)...), append(want, test.want...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, request %d:\n%v, want\n%v", name, i, got, want)
			}
		}
		q.doorbell.Close()
	}
}

// TestRequiredCapabilities posts what older kernels lack.
func TestRequiredCapabilities(t *testing.T) {
	for op, caps := range map[verbs.Opcode]uint64{verbs.OpFlush: abi.IB_UVERBS_DEVICE_ATOMIC_WRITE, verbs.OpAtomicWrite: abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL} {
		q := fakeQueue(t, 8)
		q.dev.Attr.CapFlags = caps
		if n, err := q.Post([]verbs.SendWR{{Opcode: op, Inline: make([]byte, 8)}}); n != 0 || !errors.Is(err, verbs.ErrOpcode) {
			t.Errorf("%v: %d, %v", op, n, err)
		}
	}
}

// TestSendsByState posts to a QP in each state, and more than there is room for, behind what the kernel has taken.
func TestSendsByState(t *testing.T) {
	q := fakeQueue(t, 8)
	post := func(n int) (int, error) {
		return q.Post(slices.Repeat([]verbs.SendWR{{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 1)}}, n))
	}
	for _, s := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR} {
		q.State = s
		if n, err := post(1); n != 0 || !errors.Is(err, verbs.ErrState) {
			t.Errorf("%v: %d, %v", s, n, err)
		}
	}
	for _, s := range []verbs.QPState{verbs.StateRTS, verbs.StateErr} {
		q.State = s
		if n, err := post(1); n != 1 || err != nil {
			t.Errorf("%v: %d, %v", s, n, err)
		}
	}
	for i, test := range []struct{ consumed, posts, want uint32 }{{0, 9, 5}, {0, 1, 0}, {2, 9, 2}, {5, 2, 2}, {5, 9, 1}} {
		q.StoreConsumer(test.consumed)
		n, err := post(int(test.posts))
		if uint32(n) != test.want || (test.want < test.posts) != (err == verbs.ErrQueueFull) {
			t.Errorf("step %d: posted %d: %v", i, n, err)
		}
	}
	if c := q.Cap(); c != 7 {
		t.Errorf("room for %d", c)
	}
}

// TestEncodedReceives compares slots of the queue with what struct rxe_recv_wqe defines.
func TestEncodedReceives(t *testing.T) {
	const most = 1 << 30
	at := func(lengths ...uint32) (sgl []verbs.SGE) {
		for i, n := range lengths {
			sgl = append(sgl, verbs.SGE{Addr: 1<<40 + uint64(i), Length: n, LKey: 9})
		}
		return sgl
	}
	for name, test := range map[string]struct {
		sgl []verbs.SGE
		err error
	}{
		"one SGE": {at(64), nil}, "one byte": {at(1), nil}, "no SGE": {nil, nil}, "empty": {at(0), nil}, "three": {at(1, 2, 3), nil},
		"four": {at(1, 2, 3, 4), verbs.ErrTooManySGEs}, "longest": {at(most), nil}, "too long": {at(most + 1), verbs.ErrMessageTooLong},
		"longest in parts": {at(most-1, 1), nil}, "too long in parts": {at(most, 1), verbs.ErrMessageTooLong},
	} {
		dev := &provider.Device{FD: -1, Port: verbs.PortAttr{MaxMessage: most}}
		rq := newRecvQueue(fakeQueue(t, 8).ring, &provider.QPInit{}, provider.QPInfo{QPNum: 17, Cap: verbs.QPCap{MaxRecvSGE: 3}}, dev)
		rq.State = verbs.StateInit
		for _, q := range []*recvQueue{rq, newSRQ(fakeQueue(t, 8).ring, 17, provider.SRQInfo{MaxSGE: 3}, dev)} {
			wrs := []verbs.RecvWR{{ID: 1 << 60, SGL: test.sgl}, {ID: 2, SGL: test.sgl}}
			for i := range uint32(2) {
				(*abi.RxeRecvWqe)(q.Slot(i)).Dma = abi.RxeDmaInfo{CurSge: 1, SgeOffset: 1}
			}
			n, err := q.Post(wrs)
			if test.err != nil {
				if refused, ok := errors.AsType[*verbs.PostError](err); n != 0 || !errors.Is(err, test.err) || !ok || refused.ID != 1<<60 || refused.QPNum != 17 {
					t.Errorf("%s: posted %d: %v, want %v", name, n, err, test.err)
				}
				continue
			}
			if n != 2 || err != nil || q.LoadProducer() != 2 || q.Cap() != 7 {
				t.Fatalf("%s: posted %d: %v", name, n, err)
			}
			for i := range wrs {
				w := (*abi.RxeRecvWqe)(q.Slot(uint32(i)))
				length := uint32(provider.SumLengths(test.sgl))
				if w.WrId != wrs[i].ID || w.Dma != (abi.RxeDmaInfo{Length: length, Resid: length, NumSge: uint32(len(test.sgl))}) ||
					!slices.Equal(unsafe.Slice((*verbs.SGE)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))), len(test.sgl)), test.sgl) {
					t.Errorf("%s: receive %d: %+v", name, i, w)
				}
			}
		}
	}
}

// TestReceivesByState posts to a QP in each state: in ERR the kernel has to be told.
func TestReceivesByState(t *testing.T) {
	dev := &provider.Device{FD: -1, Port: verbs.PortAttr{MaxMessage: 1 << 20}}
	q := newRecvQueue(fakeQueue(t, 8).ring, &provider.QPInit{}, provider.QPInfo{Cap: verbs.QPCap{MaxRecvSGE: 1}}, dev)
	for _, wr := range []verbs.RecvWR{{SGL: []verbs.SGE{{Length: 1}}}, {}} { // simple, and not
		q.State = verbs.StateReset
		if n, err := q.Post([]verbs.RecvWR{wr}); n != 0 || !errors.Is(err, verbs.ErrState) {
			t.Errorf("RESET: %d, %v", n, err)
		}
		q.State = verbs.StateInit
		if n, err := q.Post([]verbs.RecvWR{wr}); n != 1 || err != nil {
			t.Errorf("INIT: %d, %v", n, err)
		}
	}
	if n, err := q.Post(make([]verbs.RecvWR, 8)); n != 5 || err != verbs.ErrQueueFull {
		t.Errorf("posted %d: %v", n, err)
	}
	q.StoreConsumer(q.prod)
	if n, err := q.Post(nil); n != 0 || err != nil || q.Closed {
		t.Errorf("nothing: %d, %v", n, err)
	}
	q.State = verbs.StateErr
	if n, err := q.Post(nil); n != 0 || err != nil || q.Closed {
		t.Errorf("nothing in ERR: %d, %v", n, err)
	}
	if n, err := q.Post([]verbs.RecvWR{{SGL: []verbs.SGE{{Length: 1}}}}); n != 1 || err != nil || !q.Closed {
		t.Errorf("ERR, without a kernel: %d, %v", n, err)
	}
	if n, err := q.Post(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrQueueFailed) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("after that: %d, %v", n, err)
	}
}

// TestCompletions polls what the kernel writes, which is struct ib_uverbs_wc but for a flag and the timestamp, around the
// end of the queue and with less room than there are.
func TestCompletions(t *testing.T) {
	q := newCompletionQueue(fakeQueue(t, 8).ring, provider.Notify{}, nil, false)
	var put, got uint64
	for i, test := range []struct{ puts, room, want int }{{7, 3, 3}, {0, 9, 4}, {0, 1, 0}, {5, 5, 5}, {4, 4, 4}} {
		for range test.puts {
			w := (*abi.IbUverbsWc)(q.ring.Slot(uint32(put)))
			*w = abi.IbUverbsWc{WrId: put, Status: uint32(put % 3), Opcode: 128, VendorErr: 5, ByteLen: 6, QpNum: 7, SrcQp: 8, WcFlags: uint32(put % 8), PkeyIndex: 10, Slid: 11, Sl: 12, DlidPathBits: 13, PortNum: 14}
			put++
		}
		q.ring.StoreProducer(uint32(put) & 7)
		wcs := make([]verbs.WC, test.room)
		for j := range wcs {
			wcs[j].Timestamp = 99
		}
		if q.HasCompletions() != (test.want > 0) {
			t.Errorf("step %d: completions: %t", i, q.HasCompletions())
		}
		n := provider.Poll(q, wcs)
		if n != test.want || q.ring.LoadConsumer() != uint32(got+uint64(n))&7 {
			t.Fatalf("step %d: polled %d", i, n)
		}
		for _, wc := range wcs[:n] {
			flags := verbs.WCFlags(got % 8)
			if flags&4 != 0 { // IB_WC_WITH_INVALIDATE
				flags += 8 - 4
			}
			if wc.ID != got || wc.Status != verbs.WCStatus(got%3) || wc.Opcode != verbs.WCRecv || wc.VendorErr != 5 || wc.ByteLen != 6 || wc.QPNum != 7 || wc.SrcQP != 8 || wc.Flags != flags || wc.Timestamp != 0 {
				t.Errorf("%d: %+v", got, wc)
			}
			got++
		}
	}
	q.ring.StoreProducer(uint32(put+3) & 7)
	next := q.Recycle()
	if n := provider.Poll(next, make([]verbs.WC, 4)); n != 0 || next.Common().HasCompletions() {
		t.Errorf("%d completions of the last user", n)
	}
	if err := q.Arm(false); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a queue that is used again: %v", err)
	}
}

// TestCreateFails makes queues that the kernel refuses, or that cannot be mapped or are too short for what they are to
// hold.
func TestCreateFails(t *testing.T) {
	const slot = 64
	good := func(elem uintptr) bool { return elem <= slot }
	for _, size := range []uint32{384 + slot<<4, 200} {
		h := newFakeDevice(t, 2, size, 6, 15, 0, 0, nil)
		create := func(fail error) (errs []error) {
			c := context{h.dev}
			cq, err := c.CreateCQ(&provider.CQInit{}, func(u provider.UHW) (provider.CQInfo, error) {
				copy(u.Out, mmap.Bytes(&abi.RxeCreateCqResp{Mi: h.info(0)}))
				return provider.CQInfo{Handle: 1}, fail
			})
			errs = append(errs, err)
			if err == nil {
				cq.Release()
			}
			for sges := range 3 {
				srq, err := c.CreateSRQ(&provider.SRQInit{}, func(u provider.UHW) (provider.SRQInfo, error) {
					copy(u.Out, mmap.Bytes(&abi.RxeCreateSrqResp{Mi: h.info(0), SrqNum: 5}))
					return provider.SRQInfo{MaxSGE: sges}, fail
				})
				if errs = append(errs, err); err == nil {
					if srq.(*recvQueue).Num != 5 {
						t.Errorf("number %d", srq.(*recvQueue).Num)
					}
					srq.Release()
				}
			}
			return errs
		}
		for i, err := range create(nil) {
			elem := []uintptr{unsafe.Sizeof(abi.IbUverbsWc{}), 40, 56, 72}[i]
			if (err == nil) != (size > 384 && good(elem)) {
				t.Errorf("%d bytes, queue %d: %v", size, i, err)
			}
		}
		for i, err := range create(syscall.ENOMEM) {
			if err != syscall.ENOMEM {
				t.Errorf("%d bytes, refused queue %d: %v", size, i, err)
			}
		}
	}
}

// TestCreateQP makes QPs whose slots are just long enough, or a byte too short.
func TestCreateQP(t *testing.T) {
	send, recv := int(unsafe.Sizeof(abi.RxeSendWqe{})), int(unsafe.Sizeof(abi.RxeRecvWqe{}))
	const slot = 512
	for name, test := range map[string]struct {
		cap verbs.QPCap
		srq provider.RecvQueue
		ok  bool
	}{
		"inline fits": {verbs.QPCap{MaxInline: slot - send}, nil, true}, "inline too long": {verbs.QPCap{MaxInline: slot - send + 1}, nil, false},
		"SGEs fit": {verbs.QPCap{MaxSendSGE: (slot - send) / 16}, nil, true}, "too many SGEs": {verbs.QPCap{MaxSendSGE: (slot-send)/16 + 1}, nil, false},
		"receives fit": {verbs.QPCap{MaxRecvSGE: (slot - recv) / 16}, nil, true}, "too long receives": {verbs.QPCap{MaxRecvSGE: (slot-recv)/16 + 1}, nil, false},
		"SRQ": {verbs.QPCap{MaxRecvSGE: 1 << 20}, new(recvQueue), true},
	} {
		h := newFakeDevice(t, 2, 384+slot<<4, 9, 15, 0, 0, nil)
		sq, rq, err := context{h.dev}.CreateQP(&provider.QPInit{Type: verbs.RC, SRQ: test.srq}, func(u provider.UHW) (provider.QPInfo, error) {
			copy(u.Out, mmap.Bytes(&abi.RxeCreateQpResp{SqMi: h.info(0), RqMi: h.info(1)}))
			return provider.QPInfo{Cap: test.cap}, nil
		})
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			sq.Release()
			if (rq == nil) != (test.srq != nil) {
				t.Errorf("%s: receives %v", name, rq)
			}
			if rq != nil {
				rq.Release()
			}
		}
	}
	if n := (context{&provider.Device{Attr: verbs.DeviceAttr{MaxSGE: 32}}}).MaxInline(); n != 512 {
		t.Errorf("%d bytes inline", n)
	}
}

//go:build linux

package rxe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// queueSpace is the size of each queue of a fuzzed device in its file. The part that is
// not reported to the driver holds a canary.
const queueSpace = 32 << 10

// fakeDevice is a device whose queues have arbitrary headers.
type fakeDevice struct {
	dev  *provider.Device
	file []byte
	size uint32 // that is reported to the driver
}

// newFakeDevice makes count queues, each with the header's words and body.
func newFakeDevice(t *testing.T, count int, size, log2, mask, prod, cons uint32, body []byte) *fakeDevice {
	fd, err := unix.MemfdCreate("queues", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	length := count * queueSpace
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		t.Fatal(err)
	}
	all, err := mmap.Map(fd, 0, length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { all.Close() })
	// Doorbells are writes to the file: they go after the queues.
	if _, err := unix.Seek(fd, int64(length), 0); err != nil {
		t.Fatal(err)
	}
	h := &fakeDevice{&provider.Device{FD: fd, Port: verbs.PortAttr{MaxMessage: 1 << 30, ActiveMTU: 5}}, all.Bytes(), size % (queueSpace / 2)}
	for i := range count {
		q := h.queue(i)
		for j := range q[h.size:] {
			q[int(h.size)+j] = 0xaa
		}
		copy(q[:h.size], bytes.Repeat(body, 1+int(h.size)/max(1, len(body))))
		hdr := (*abi.RxeQueueBuf)(unsafe.Pointer(unsafe.SliceData(q)))
		hdr.Log2ElemSize, hdr.IndexMask, hdr.ProducerIndex, hdr.ConsumerIndex = log2, mask, prod, cons
	}
	return h
}

func (h *fakeDevice) queue(i int) []byte { return h.file[i*queueSpace:][:queueSpace] }

func (h *fakeDevice) info(i int) abi.Mminfo {
	return abi.Mminfo{Offset: uint64(i * queueSpace), Size: h.size}
}

// set moves the kernel's side of a queue.
func (h *fakeDevice) set(i int, prod, cons uint32) {
	mmap.Word(h.queue(i), int(unsafe.Offsetof(abi.RxeQueueBuf{}.ProducerIndex))).Store(prod)
	mmap.Word(h.queue(i), int(unsafe.Offsetof(abi.RxeQueueBuf{}.ConsumerIndex))).Store(cons)
}

// check fails if anything was written outside a queue.
func (h *fakeDevice) check(t *testing.T) {
	t.Helper()
	for i := range len(h.file) / queueSpace {
		q := h.queue(i)
		if n := len(q) - max(int(h.size), int(unsafe.Sizeof(abi.RxeQueueBuf{}))); bytes.Count(q[len(q)-n:], []byte{0xaa}) != n {
			t.Fatalf("written behind queue %d", i)
		}
	}
}

// FuzzCompletionQueue polls a queue with an arbitrary header, index words and entries:
// Poll returns what fits, its results can be formatted, and it ends when the producer
// stops.
func FuzzCompletionQueue(f *testing.F) {
	f.Add(uint32(384+64<<4), uint32(6), uint32(15), uint32(20), uint32(3), uint8(4), []byte{0xff, 1, 2})
	f.Add(uint32(384+64<<4), uint32(6), uint32(15), ^uint32(0), uint32(0), uint8(1), []byte{4})
	f.Add(uint32(384+64<<4), uint32(6), uint32(16), uint32(0), uint32(0), uint8(1), []byte{4})
	f.Add(uint32(384), uint32(0), uint32(0), uint32(0), uint32(0), uint8(1), []byte{4})
	f.Add(uint32(100), uint32(6), uint32(15), uint32(0), uint32(0), uint8(1), []byte{})
	f.Fuzz(func(t *testing.T, size, log2, mask, prod, cons uint32, batch uint8, body []byte) {
		h := newFakeDevice(t, 1, size, log2, mask, prod, cons, body)
		cq, err := context{h.dev}.CreateCQ(&provider.CQInit{}, func(u provider.UHW) (provider.CQInfo, error) {
			copy(u.Out, mmap.Bytes(&abi.RxeCreateCqResp{Mi: h.info(0)}))
			return provider.CQInfo{Handle: 1}, nil
		})
		if err != nil {
			return
		}
		defer cq.Release()
		if uint64(cq.Cap())*uint64(unsafe.Sizeof(verbs.WC{})) > uint64(h.size) {
			t.Fatalf("%d entries in %d bytes", cq.Cap(), h.size)
		}
		wcs := make([]verbs.WC, batch)
		for _, p := range []uint32{prod, prod + cons, ^prod} {
			h.set(0, p, cons) // the consumer's word is ours: its value changes nothing
			total := 0
			for {
				n := provider.Poll(cq, wcs)
				if n < 0 || n > len(wcs) || n > cq.Cap() {
					t.Fatalf("polled %d of %d into %d", n, cq.Cap(), len(wcs))
				}
				if n == 0 {
					break
				}
				for i := range wcs[:n] {
					wc := &wcs[i]
					if err := wc.Err(); (err == nil) != (wc.Status == verbs.WCSuccess) {
						t.Fatalf("status %v is %v", wc.Status, err)
					}
					_, _, _ = wc.Opcode.String(), wc.Imm(), wc.InvalidatedRKey()
				}
				if total += n; total > cq.Cap() {
					t.Fatalf("polled %d, more than fit", total)
				}
			}
		}
		h.check(t)
	})
}

// FuzzPost posts to queues with arbitrary header and consumer words, of a QP with
// arbitrary limits: nothing is written outside a queue, and no more requests are accepted
// than fit.
func FuzzPost(f *testing.F) {
	f.Add(uint32(384+512<<4), uint32(9), uint32(15), uint32(3), uint32(3), uint32(4), uint32(64), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add(uint32(384+512<<2), uint32(9), uint32(3), ^uint32(0), uint32(1<<31), uint32(20), uint32(320), bytes.Repeat([]byte{0x42}, 300))
	f.Add(uint32(384+128<<3), uint32(7), uint32(7), uint32(1), uint32(2), uint32(0), uint32(0), []byte{7, 7, 7})
	f.Add(uint32(384+512<<2), uint32(9), uint32(3), uint32(0), uint32(0), ^uint32(0), ^uint32(0), []byte{1})
	f.Fuzz(func(t *testing.T, size, log2, mask, prod, cons, sges, inline uint32, ops []byte) {
		h := newFakeDevice(t, 2, size, log2, mask, prod, cons, ops)
		info := provider.QPInfo{QPNum: 17, Cap: verbs.QPCap{MaxSendSGE: int(sges), MaxRecvSGE: int(sges), MaxInline: int(inline)}}
		sq, rq, err := context{h.dev}.CreateQP(&provider.QPInit{Type: verbs.RC}, func(u provider.UHW) (provider.QPInfo, error) {
			copy(u.Out, mmap.Bytes(&abi.RxeCreateQpResp{SqMi: h.info(0), RqMi: h.info(1)}))
			return info, nil
		})
		if err != nil {
			return
		}
		defer sq.Release()
		defer rq.Release()
		sq.(*sendQueue).State, rq.(*recvQueue).State = verbs.StateRTS, verbs.StateRTS
		for len(ops) > 0 {
			n := min(len(ops), 8)
			op := append(make([]byte, 0, 8), ops[:n]...)[:8]
			ops = ops[n:]
			sgl := make([]verbs.SGE, op[1]%40)
			for i := range sgl {
				sgl[i] = verbs.SGE{Addr: ^uint64(0), Length: binary.LittleEndian.Uint32(op[4:]) >> 8, LKey: uint32(op[2])}
			}
			wr := verbs.SendWR{ID: 1, Opcode: verbs.Opcode(op[0] % 32), Flags: verbs.SendFlags(op[3]), SGL: sgl}
			if op[2]&1 != 0 {
				wr.SGL, wr.Inline = nil, make([]byte, binary.LittleEndian.Uint16(op[4:])%1024)
			}
			if op[2]&2 != 0 {
				wr.Args = &verbs.SendArgs{InlineList: [][]byte{make([]byte, op[6]), make([]byte, op[7])}}
			}
			posted, err := sq.Post([]verbs.SendWR{wr, wr, wr})
			checkPost(t, posted, sq.Cap(), err)
			posted, err = rq.Post([]verbs.RecvWR{{ID: 2, SGL: sgl}, {ID: 3, SGL: sgl}})
			checkPost(t, posted, rq.Cap(), err)
			h.check(t)
			h.set(0, ^prod, binary.LittleEndian.Uint32(op))
			h.set(1, ^prod, binary.LittleEndian.Uint32(op[4:]))
		}
	})
}

func checkPost(t *testing.T, posted, room int, err error) {
	t.Helper()
	_, refused := errors.AsType[*verbs.PostError](err)
	if posted < 0 || posted > room || err != nil && !refused && err != verbs.ErrQueueFull {
		t.Fatalf("posted %d where %d fit: %v", posted, room, err)
	}
}

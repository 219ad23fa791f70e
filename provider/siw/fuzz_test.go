//go:build linux

package siw

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

const (
	queueSpace = 64 << 10
	maxQueue   = 512 // elements; even SQEs fit
)

// fakeDevice is a device whose queues have arbitrary contents: a CQ, a send queue and a
// receive queue, each followed by a canary. It is also the kernel's file.
type fakeDevice struct {
	host.Unsupported
	dev  *provider.Device
	file []byte // the queues

	ring      func() syscall.Errno // answers a doorbell, if it is not nil
	doorbells int
	state     verbs.QPState // of the QP, as the kernel has it
	moves     int           // of the QP to the error state
}

func newFakeDevice(t testing.TB) *fakeDevice {
	h := &fakeDevice{file: make([]byte, 3*queueSpace), state: verbs.StateRTS}
	fd, errno := host.Install(h, "siw")
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { host.Close(fd) })
	h.dev = &provider.Device{FD: fd, Port: verbs.PortAttr{MaxMessage: 1 << 30}}
	return h
}

func (h *fakeDevice) Close() {}

func (h *fakeDevice) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	if offset < 0 || offset > int64(len(h.file)-length) {
		return nil, syscall.EINVAL
	}
	return h.file[offset:][:length], 0
}

func (h *fakeDevice) Write(b []byte) (int, syscall.Errno) {
	var hdr abi.IbUverbsCmdHdr
	n := copy(mmap.Bytes(&hdr), b)
	switch hdr.Command {
	case abi.IB_USER_VERBS_CMD_POST_SEND:
		if h.doorbells++; h.ring != nil {
			return len(b), h.ring()
		}
	case abi.IB_USER_VERBS_CMD_QUERY_QP:
		resp := *(**abi.IbUverbsQueryQpResp)(unsafe.Pointer(&b[n]))
		resp.QpState = uint8(h.state)
	case abi.IB_USER_VERBS_CMD_MODIFY_QP:
		h.moves++
	}
	return len(b), 0
}

// fill fills the first size bytes of a queue with copies of body, the rest with the
// canary.
func (h *fakeDevice) fill(i, size int, body []byte) {
	q := h.file[i*queueSpace:][:queueSpace]
	copy(q[:size], bytes.Repeat(body, 1+size/max(1, len(body))))
	for j := range q[size:] {
		q[size+j] = 0xaa
	}
}

func (h *fakeDevice) check(t *testing.T, i, size int) {
	t.Helper()
	if q := h.file[i*queueSpace:][size:queueSpace]; bytes.Count(q, []byte{0xaa}) != len(q) {
		t.Fatalf("written behind queue %d", i)
	}
}

func (h *fakeDevice) createCQ(n uint32) (*completionQueue, int, error) {
	size := int(n)*int(unsafe.Sizeof(abi.SiwCqe{})) + int(unsafe.Sizeof(abi.SiwCqCtrl{}))
	cq, err := context{h.dev}.CreateCQ(&provider.CQInit{}, func(u provider.UHW) (provider.CQInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateCq{NumCqe: n}))
		return provider.CQInfo{Handle: 1}, nil
	})
	if err != nil {
		return nil, size, err
	}
	return cq.(*completionQueue), size, nil
}

func (h *fakeDevice) createQP(cq *completionQueue, sqes, rqes uint32, limits verbs.QPCap) (*sendQueue, *recvQueue, error) {
	init := &provider.QPInit{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: int(sqes)/2 + 1, MaxRecvWR: int(rqes)/2 + 1},
	}
	sq, rq, err := context{h.dev}.CreateQP(init, func(u provider.UHW) (provider.QPInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateQp{NumSqe: sqes, NumRqe: rqes, SqKey: queueSpace, RqKey: 2 * queueSpace}))
		return provider.QPInfo{QPNum: 5, Cap: limits}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return sq.(*sendQueue), rq.(*recvQueue), nil
}

// drain polls until the CQ is empty, and fails after more than room completions.
func drain(t *testing.T, cq *completionQueue, batch, room int) {
	t.Helper()
	wcs := make([]verbs.WC, batch)
	for total := 0; ; {
		n := provider.Poll(cq, wcs)
		if n == 0 {
			return
		}
		if total += n; n > len(wcs) || total > room {
			t.Fatalf("polled %d into %d, %d in all, of %d", n, len(wcs), total, room)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err := wc.Err(); (err == nil) != (wc.Status == verbs.WCSuccess) {
				t.Fatalf("status %v is %v", wc.Status, err)
			}
			_ = wc.Opcode.String()
		}
	}
}

// FuzzCompletionQueue polls a queue of any size with arbitrary contents: each entry that
// is marked as filled is returned once.
func FuzzCompletionQueue(f *testing.F) {
	cqe := abi.SiwCqe{Id: 7, Flags: abi.SIW_WQE_VALID, Opcode: abi.SIW_OP_RECEIVE, Bytes: 9}
	f.Add(uint32(16), uint8(4), mmap.Bytes(&cqe))
	f.Add(uint32(1), uint8(1), bytes.Repeat([]byte{0xff}, 32))
	f.Add(uint32(256), uint8(200), []byte{1, 0, 0})
	f.Add(uint32(0), uint8(1), []byte{})
	f.Add(uint32(3), uint8(1), []byte{1})
	f.Fuzz(func(t *testing.T, n uint32, batch uint8, body []byte) {
		n %= maxQueue + 1
		h := newFakeDevice(t)
		cq, size, err := h.createCQ(n)
		if err != nil {
			if n != 0 && n&(n-1) == 0 {
				t.Fatal(err)
			}
			return
		}
		defer cq.Release()
		if cq.Cap() != int(n) {
			t.Fatalf("%d entries of %d", cq.Cap(), n)
		}
		for range 3 {
			h.fill(0, size, body)
			drain(t, cq, int(batch), int(n))
			cq.flush(1, 2, verbs.WCSend)
			drain(t, cq, int(batch), 1+int(n))
			h.check(t, 0, size)
		}
	})
}

// FuzzPost posts to queues of any size whose elements have arbitrary flags, and moves the
// QP to the error state: nothing is written outside a queue, and no more requests
// complete than there were.
func FuzzPost(f *testing.F) {
	f.Add(uint32(16), uint32(8), uint32(4), uint32(80), []byte{0, 1, 2, 3}, []byte{0})
	f.Add(uint32(1), uint32(1), uint32(99), ^uint32(0), []byte{0, 30, 1, 255, 2, 6, 2, 100}, []byte{1, 0, 0, 0xff, 0xff})
	f.Add(uint32(64), uint32(0), uint32(6), uint32(0), []byte{5, 5, 3, 3}, bytes.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, sqes, rqes, sges, inline uint32, ops, body []byte) {
		sqes, rqes = sqes%maxQueue, rqes%maxQueue
		h := newFakeDevice(t)
		cq, _, err := h.createCQ(4)
		if err != nil {
			t.Fatal(err)
		}
		defer cq.Release()
		sq, rq, err := h.createQP(cq, sqes, rqes, verbs.QPCap{MaxSendSGE: int(sges), MaxRecvSGE: int(sges), MaxInline: int(inline)})
		if err != nil {
			return
		}
		defer sq.Release()
		defer rq.Release()
		sqSize, rqSize := int(sqes)*int(unsafe.Sizeof(abi.SiwSqe{})), int(rqes)*int(unsafe.Sizeof(abi.SiwRqe{}))
		h.fill(1, sqSize, body)
		h.fill(2, rqSize, body)
		sq.State, rq.State = verbs.StateRTS, verbs.StateRTS
		for ; len(ops) > 1; ops = ops[2:] {
			sgl := make([]verbs.SGE, ops[1]%16)
			for i := range sgl {
				sgl[i] = verbs.SGE{Addr: ^uint64(0), Length: uint32(ops[0]) << 20}
			}
			wr := verbs.SendWR{ID: 1, Opcode: verbs.Opcode(ops[0] % 32), Flags: verbs.SendFlags(ops[0]), SGL: sgl}
			if ops[1]&0x80 != 0 {
				wr.SGL, wr.Args = nil, &verbs.SendArgs{InlineList: [][]byte{make([]byte, ops[1]&0x7f), make([]byte, ops[0])}}
			}
			posted, err := sq.Post([]verbs.SendWR{wr, wr, wr})
			checkPost(t, posted, sq.Cap(), err)
			posted, err = rq.Post([]verbs.RecvWR{{ID: 2, SGL: sgl}, {ID: 3, SGL: sgl}})
			checkPost(t, posted, rq.Cap(), err)
			h.check(t, 1, sqSize)
			h.check(t, 2, rqSize)
		}
		drain(t, cq, 3, cq.Cap())
		for _, q := range []provider.Stateful{sq, rq} {
			q.Suspend()
			q.Settle(verbs.StateErr, true)
		}
		drain(t, cq, 3, int(sqes+rqes))
	})
}

func checkPost(t *testing.T, posted, room int, err error) {
	t.Helper()
	_, refused := errors.AsType[*verbs.PostError](err)
	if posted < 0 || posted > room || err != nil && !refused && err != verbs.ErrQueueFull {
		t.Fatalf("posted %d where %d fit: %v", posted, room, err)
	}
}

//go:build linux

package uverbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// BenchmarkDoorbell rings the doorbell of an empty queue with both functions that Go has
// for system calls. Package provider uses the cheaper one.
func BenchmarkDoorbell(b *testing.B) {
	qp, msg := newDoorbellQP(b)
	fd := uintptr(qp.pd.ctx.file.FD)
	addr, size := uintptr(msg.Addr()), uintptr(len(msg.Bytes()))
	for name, call := range map[string]func(trap, a1, a2, a3 uintptr) (uintptr, uintptr, unix.Errno){
		"Syscall": unix.Syscall, "RawSyscall": unix.RawSyscall,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, errno := call(unix.SYS_WRITE, fd, addr, size); errno != 0 {
					b.Fatal(errno)
				}
			}
		})
	}
}

// newDoorbellQP makes a QP in RTS and the command that rings its doorbell.
func newDoorbellQP(b testing.TB) (*QP, *mmap.Buffer) {
	ctx, err := Open("")
	if err != nil {
		b.Skipf("needs the lab: %v", err)
	}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	pd, err := ctx.AllocPD()
	must(err)
	cq, err := ctx.CreateCQ(CQOptions{Depth: 8})
	must(err)
	qp, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	must(err)
	self, err := qp.Addr(1)
	must(err)
	must(qp.Connect(self, self, ConnectOptions{}))
	var (
		hdr  abi.IbUverbsCmdHdr
		req  abi.IbUverbsPostSend
		resp abi.IbUverbsPostSendResp
	)
	size := len(mmap.Bytes(&hdr)) + len(mmap.Bytes(&req))
	out, err := mmap.NewBuffer(len(mmap.Bytes(&resp)), mmap.BufferOptions{})
	must(err)
	msg, err := mmap.NewBuffer(size, mmap.BufferOptions{})
	must(err)
	hdr = abi.IbUverbsCmdHdr{Command: abi.IB_USER_VERBS_CMD_POST_SEND, InWords: uint16(size / 4), OutWords: uint16(len(mmap.Bytes(&resp)) / 4)}
	req = abi.IbUverbsPostSend{Response: out.Addr(), QpHandle: qp.handle, WqeSize: uint32(len(mmap.Bytes(&abi.IbUverbsSendWr{})))}
	copy(msg.Bytes()[copy(msg.Bytes(), mmap.Bytes(&hdr)):], mmap.Bytes(&req))
	b.Cleanup(func() {
		for _, c := range []interface{ Close() error }{qp, cq, pd, ctx, msg, out} {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return qp, msg
}

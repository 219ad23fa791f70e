package provider

import (
	"os"

	"golang.org/x/sys/unix"
	"unsafe"

	"github.com/goverbs/verbs/abi"
)

// Notify arms a CQ through the write command REQ_NOTIFY_CQ, for drivers that
// have no arm word in mapped memory.
type Notify struct {
	fd  int
	msg notifyMsg
}

type notifyMsg struct {
	hdr abi.IbUverbsCmdHdr
	req abi.IbUverbsReqNotifyCq
}

// NewNotify encodes the command for the CQ with the given handle on the uverbs
// file fd.
func NewNotify(fd int, cqHandle uint32) *Notify {
	n := &Notify{fd: fd}
	n.msg.hdr = abi.IbUverbsCmdHdr{
		Command: abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
		InWords: uint16(unsafe.Sizeof(n.msg) / 4),
	}
	n.msg.req.CqHandle = cqHandle
	return n
}

// Arm makes the one system call. Calls must not overlap.
func (n *Notify) Arm(solicitedOnly bool) error {
	n.msg.req.SolicitedOnly = 0
	if solicitedOnly {
		n.msg.req.SolicitedOnly = 1
	}
	return write(n.fd, unsafe.Pointer(&n.msg), unsafe.Sizeof(n.msg))
}

// write sends a command that neither blocks nor returns anything, so the
// scheduler need not be told: RawSyscall costs less than Syscall
// (BenchmarkDoorbell in package uverbs shows it).
func write(fd int, p unsafe.Pointer, size uintptr) error {
	return retry(unix.RawSyscall, fd, p, size)
}

// writeLong is write for commands in which the kernel does the work: telling
// the scheduler costs little then (BenchmarkWrite shows no difference on siw),
// and spares others the wait, the garbage collector among them.
func writeLong(fd int, p unsafe.Pointer, size uintptr) error {
	return retry(unix.Syscall, fd, p, size)
}

func retry(call func(trap, a1, a2, a3 uintptr) (uintptr, uintptr, unix.Errno), fd int, p unsafe.Pointer, size uintptr) error {
	for {
		_, _, errno := call(unix.SYS_WRITE, uintptr(fd), uintptr(p), size)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("write", errno)
	}
}

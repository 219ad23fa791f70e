package provider

import (
	"runtime"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// Doorbell tells the kernel that a send queue has new work: the write command
// POST_SEND with no work requests, which for drivers with a mapped queue means
// "look there". It is encoded once.
type Doorbell struct {
	fd   int
	long bool
	pin  runtime.Pinner
	msg  *doorbellMsg
}

type doorbellMsg struct {
	hdr  abi.IbUverbsCmdHdr
	req  abi.IbUverbsPostSend
	resp abi.IbUverbsPostSendResp
}

// NewDoorbell makes the doorbell of the QP with the given handle on the uverbs
// file fd. long says that the driver works on the requests in the call, and
// does not only queue them. Close it after the last Ring.
func NewDoorbell(fd int, qpHandle uint32, long bool) *Doorbell {
	d := &Doorbell{fd: fd, long: long, msg: new(doorbellMsg)}
	m := d.msg
	m.hdr = abi.IbUverbsCmdHdr{
		Command:  abi.IB_USER_VERBS_CMD_POST_SEND,
		InWords:  uint16((unsafe.Sizeof(m.hdr) + unsafe.Sizeof(m.req)) / 4),
		OutWords: uint16(unsafe.Sizeof(m.resp) / 4),
	}
	m.req = abi.IbUverbsPostSend{
		Response: mmap.Pin(&d.pin, mmap.Bytes(&m.resp)),
		QpHandle: qpHandle,
		WqeSize:  uint32(unsafe.Sizeof(abi.IbUverbsSendWr{})),
	}
	return d
}

// Ring makes the one system call. It does not allocate.
func (d *Doorbell) Ring() error {
	size := unsafe.Sizeof(d.msg.hdr) + unsafe.Sizeof(d.msg.req)
	if d.long {
		return writeLong(d.fd, unsafe.Pointer(d.msg), size)
	}
	return write(d.fd, unsafe.Pointer(d.msg), size)
}

// Close releases the doorbell.
func (d *Doorbell) Close() { d.pin.Unpin() }

// StateQuery asks the kernel for a QP's state: the write command QUERY_QP,
// encoded once.
type StateQuery struct {
	fd  int
	pin runtime.Pinner
	msg *stateMsg
}

type stateMsg struct {
	hdr  abi.IbUverbsCmdHdr
	req  abi.IbUverbsQueryQp
	resp abi.IbUverbsQueryQpResp
}

// NewStateQuery encodes the command as [NewDoorbell] does.
func NewStateQuery(fd int, qpHandle uint32) *StateQuery {
	q := &StateQuery{fd: fd, msg: new(stateMsg)}
	m := q.msg
	m.hdr = abi.IbUverbsCmdHdr{
		Command:  abi.IB_USER_VERBS_CMD_QUERY_QP,
		InWords:  uint16((unsafe.Sizeof(m.hdr) + unsafe.Sizeof(m.req)) / 4),
		OutWords: uint16(unsafe.Sizeof(m.resp) / 4),
	}
	const state = 1 << 0
	m.req = abi.IbUverbsQueryQp{Response: mmap.Pin(&q.pin, mmap.Bytes(&m.resp)), QpHandle: qpHandle, AttrMask: state}
	return q
}

// Ask makes the one system call and does not allocate. Calls must not overlap.
func (q *StateQuery) Ask() (QPState, error) {
	err := write(q.fd, unsafe.Pointer(q.msg), unsafe.Sizeof(q.msg.hdr)+unsafe.Sizeof(q.msg.req))
	return QPState(q.msg.resp.QpState), err
}

// Close releases the query.
func (q *StateQuery) Close() { q.pin.Unpin() }

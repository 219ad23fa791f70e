package provider

import (
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// Doorbell tells the kernel that a send queue has new work, by the command POST_SEND without work
// requests: kernel drivers that map their queues then look there. Drivers for hardware ring
// doorbells in device memory instead.
type Doorbell struct{ cmd *command }

// NewDoorbell makes the doorbell of the QP with the given handle. blocking reports whether
// the driver processes requests in the call and does not only queue them. Close the
// doorbell after the last Ring.
func NewDoorbell(dev *Device, qpHandle uint32, blocking bool) (Doorbell, error) {
	req := abi.IbUverbsPostSend{QpHandle: qpHandle, WqeSize: uint32(unsafe.Sizeof(abi.IbUverbsSendWr{}))}
	cmd, err := newCommand(dev, blocking, abi.IB_USER_VERBS_CMD_POST_SEND, mmap.Bytes(&req), int(unsafe.Sizeof(abi.IbUverbsPostSendResp{})))
	return Doorbell{cmd}, err
}

// FlushQP moves a QP to the error state, or does so again, so that its driver flushes the
// requests that have been posted.
func FlushQP(dev *Device, qpHandle uint32) error {
	const state = 1 << 0 // enum ib_qp_attr_mask
	req := abi.IbUverbsModifyQp{QpHandle: qpHandle, AttrMask: state, QpState: uint8(verbs.StateErr)}
	cmd, err := newCommand(dev, false, abi.IB_USER_VERBS_CMD_MODIFY_QP, mmap.Bytes(&req), 0)
	if err != nil {
		return err
	}
	defer cmd.close()
	return cmd.run()
}

// Ring rings the doorbell by one system call. It does not allocate.
func (d Doorbell) Ring() error { return d.cmd.run() }

// Close releases the doorbell.
func (d Doorbell) Close() { d.cmd.close() }

// Notify arms a CQ through the command REQ_NOTIFY_CQ, for drivers that have no
// arm word in mapped memory.
type Notify struct {
	dev *Device
	cq  uint32
	cmd *command // nil until the first Arm: many CQs are only polled
	req *abi.IbUverbsReqNotifyCq
}

// NewNotify makes the command for the CQ with the given handle. Close it after the last Arm.
func NewNotify(dev *Device, cqHandle uint32) Notify { return Notify{dev: dev, cq: cqHandle} }

// Arm arms the CQ by one system call. Calls must not overlap.
func (n *Notify) Arm(solicitedOnly bool) error {
	if n.cmd == nil {
		cmd, err := newCommand(n.dev, false, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, mmap.Bytes(&abi.IbUverbsReqNotifyCq{CqHandle: n.cq}), 0)
		if err != nil {
			return err
		}
		n.cmd = cmd
		n.req = (*abi.IbUverbsReqNotifyCq)(unsafe.Pointer(unsafe.SliceData(n.cmd.req)))
	}
	n.req.SolicitedOnly = 0
	if solicitedOnly {
		n.req.SolicitedOnly = 1
	}
	return n.cmd.run()
}

// Close releases the command.
func (n *Notify) Close() { n.cmd.close() }

// StateQuery asks the kernel for a QP's state: the command QUERY_QP.
type StateQuery struct {
	dev  *Device
	qp   uint32
	cmd  *command // nil until the first Ask: most QPs need none
	resp *abi.IbUverbsQueryQpResp
}

// NewStateQuery makes the command for the QP with the given handle. Close it after the last Ask.
func NewStateQuery(dev *Device, qpHandle uint32) StateQuery {
	return StateQuery{dev: dev, qp: qpHandle}
}

// Ask returns the state, by one system call. Only the first call allocates. Calls must not overlap.
func (q *StateQuery) Ask() (verbs.QPState, error) {
	if q.cmd == nil {
		const state = 1 << 0 // enum ib_qp_attr_mask
		req := abi.IbUverbsQueryQp{QpHandle: q.qp, AttrMask: state}
		cmd, err := newCommand(q.dev, false, abi.IB_USER_VERBS_CMD_QUERY_QP, mmap.Bytes(&req), int(unsafe.Sizeof(abi.IbUverbsQueryQpResp{})))
		if err != nil {
			return 0, err
		}
		q.cmd, q.resp = cmd, (*abi.IbUverbsQueryQpResp)(unsafe.Pointer(unsafe.SliceData(cmd.resp)))
	}
	err := q.cmd.run()
	return verbs.QPState(q.resp.QpState), err
}

// Close releases the query.
func (q *StateQuery) Close() { q.cmd.close() }

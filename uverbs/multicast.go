package uverbs

import (
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// AttachMulticast makes a UD QP receive what is sent to a multicast group
// (ibv_attach_mcast(3)); mlid is for InfiniBand only.
func (q *QP) AttachMulticast(group GID, mlid uint16) error {
	return q.multicast("attach to multicast group", abi.IB_USER_VERBS_CMD_ATTACH_MCAST, group, mlid)
}

// DetachMulticast undoes [QP.AttachMulticast].
func (q *QP) DetachMulticast(group GID, mlid uint16) error {
	return q.multicast("detach from multicast group", abi.IB_USER_VERBS_CMD_DETACH_MCAST, group, mlid)
}

func (q *QP) multicast(op string, cmd uint32, group GID, mlid uint16) error {
	if err := q.obj.enter(op); err != nil {
		return err
	}
	defer q.obj.exit()
	req := abi.IbUverbsAttachMcast{Gid: group, QpHandle: q.handle, Mlid: mlid} // the same to detach
	if err := q.pd.ctx.file.Invoke(cmd, mmap.Bytes(&req), nil, nil, nil); err != nil {
		return q.obj.fail(op, err)
	}
	return nil
}

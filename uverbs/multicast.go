package uverbs

import (
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// AttachMulticast makes a UD QP receive what is sent to a multicast group
// (ibv_attach_mcast(3)); mlid is for InfiniBand only. Close detaches the QP.
func (q *QP) AttachMulticast(group verbs.GID, mlid uint16) error {
	return q.multicast("attach to multicast group", (*qpLife).attach, membership{group, mlid})
}

// DetachMulticast undoes [QP.AttachMulticast].
func (q *QP) DetachMulticast(group verbs.GID, mlid uint16) error {
	return q.multicast("detach from multicast group", (*qpLife).detach, membership{group, mlid})
}

func (q *QP) multicast(op string, run func(*qpLife, membership) error, m membership) error {
	if err := q.obj.enter(op); err != nil {
		return err
	}
	defer q.obj.exit()
	if err := run(q.life, m); err != nil {
		return q.obj.fail(op, err)
	}
	return nil
}

// membership is a group that a QP is attached to.
type membership struct {
	gid  verbs.GID
	mlid uint16
}

func (l *qpLife) attach(m membership) error {
	l.groupsMu.Lock()
	defer l.groupsMu.Unlock()
	err := l.multicast(abi.IB_USER_VERBS_CMD_ATTACH_MCAST, m)
	if err == nil && !slices.Contains(l.groups, m) {
		l.groups = append(l.groups, m)
	}
	return err
}

func (l *qpLife) detach(m membership) error {
	l.groupsMu.Lock()
	defer l.groupsMu.Unlock()
	err := l.multicast(abi.IB_USER_VERBS_CMD_DETACH_MCAST, m)
	if err == nil {
		l.groups = slices.DeleteFunc(l.groups, func(g membership) bool { return g == m })
	}
	return err
}

func (l *qpLife) multicast(cmd uint32, m membership) error {
	req := abi.IbUverbsAttachMcast{Gid: m.gid, QpHandle: l.handle, Mlid: m.mlid} // the same to detach
	return l.core.file.Invoke(cmd, mmap.Bytes(&req), nil, nil, nil)
}

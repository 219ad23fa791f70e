package uverbs

import (
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// AttachMulticast makes a UD QP receive the datagrams of a group, until Close
// (ibv_attach_mcast(3)). mlid is for InfiniBand only.
func (q *QP) AttachMulticast(group verbs.GID, mlid uint16) error {
	return q.multicast("attach to multicast group", (*groups).attach, membership{group, mlid})
}

// DetachMulticast undoes [QP.AttachMulticast].
func (q *QP) DetachMulticast(group verbs.GID, mlid uint16) error {
	return q.multicast("detach from multicast group", (*groups).detach, membership{group, mlid})
}

func (q *QP) multicast(op string, run func(*groups, membership) error, m membership) error {
	return q.obj.do(op, func() error { return run(q.groups, m) })
}

// membership is a group that a QP is attached to.
type membership struct {
	gid  verbs.GID
	mlid uint16
}

// groups contains the multicast groups of a QP.
type groups struct {
	core *contextCore
	qp   uint32

	mu     sync.Mutex
	joined []membership
}

func (g *groups) attach(m membership) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.invoke(abi.IB_USER_VERBS_CMD_ATTACH_MCAST, m)
	if err == nil && !slices.Contains(g.joined, m) {
		g.joined = append(g.joined, m)
	}
	return err
}

func (g *groups) detach(m membership) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.invoke(abi.IB_USER_VERBS_CMD_DETACH_MCAST, m)
	if err == nil {
		g.joined = slices.DeleteFunc(g.joined, func(other membership) bool { return other == m })
	}
	return err
}

func (g *groups) detachAll() {
	for _, m := range slices.Clone(g.joined) {
		g.detach(m)
	}
}

func (g *groups) invoke(cmd uint32, m membership) error {
	req := abi.IbUverbsAttachMcast{Gid: m.gid, QpHandle: g.qp, Mlid: m.mlid} // used to detach as well
	return g.core.file.Invoke(cmd, mmap.Bytes(&req), nil, nil, nil)
}

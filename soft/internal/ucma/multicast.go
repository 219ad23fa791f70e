package ucma

import (
	"slices"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// group is an ID's membership of a multicast group (struct ucma_multicast).
type group struct {
	context  *context
	num      uint32
	uid      uint64 // of the program
	reported uint32 // events that have been read
}

func (c *context) join(in *abi.RdmaUcmJoinMcast, out int) syscall.Errno {
	addr, ok := decodeAddr(mmap.Bytes(&in.Addr))
	sendOnly := in.JoinFlags == abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
	if !ok || int(in.AddrSize) != addr.size() || in.JoinFlags != abi.RDMA_MC_JOIN_FLAG_FULLMEMBER && !sendOnly {
		return syscall.EINVAL
	}
	f := c.file
	ev, errno := c.id.join(&addr)
	if errno != 0 {
		return errno
	}
	g := &group{context: c, uid: in.Uid}
	g.num = f.m.groups.Add(g)
	if errno := respond(in.Response, out, &abi.RdmaUcmCreateIdResp{Id: g.num}); errno != 0 {
		f.m.groups.Remove(g.num)
		return errno
	}
	c.groups = append(c.groups, g)
	ev.group = g
	c.id.handler(c.id, ev)
	return 0
}

// enotsupp is the kernel's internal ENOTSUPP.
const enotsupp = syscall.Errno(524)

// join returns the event of joining a group (cma_iboe_join_multicast, cma_iboe_set_mgid). The network
// delivers the group's packets when the program attaches its QP to the group.
func (i *id) join(addr *sockaddr) (*event, syscall.Errno) {
	switch {
	case i.state != bound && i.state != addrKnown, !i.datagram(), addr.isZero():
		return nil, syscall.EINVAL
	case !i.routable:
		return nil, syscall.ENODEV
	case addr.family != afInet:
		return nil, enotsupp
	}
	i.setDefaultQKey()
	return &event{
		typ: multicastJoin, qkey: i.qkey, param: abi.RdmaUcmConnParam{QpNum: 0xffffff},
		av: verbs.AddressVector{
			Global: true, DGID: addr.gid(), SGIDIndex: uint8(i.sgidIndex()), HopLimit: defaultHopLimit, Port: 1,
		},
	}, 0
}

// setDefaultQKey sets the Q_Key if there is none (cma_set_default_qkey).
func (i *id) setDefaultQKey() {
	if i.qkey == 0 {
		i.qkey = defaultQKey
	}
}

func (f *File) leave(in *abi.RdmaUcmDestroyId, out int) syscall.Errno {
	g := f.m.groups.Get(in.Id)
	switch {
	case g == nil:
		return syscall.ENOENT
	case g.context.file != f:
		return syscall.EINVAL
	case g.context.id == nil:
		return syscall.ENXIO
	}
	c := g.context
	c.groups = slices.DeleteFunc(c.groups, func(x *group) bool { return x == g })
	f.m.groups.Remove(g.num)
	f.drop(func(p *pending) bool { return p.group == g })
	return respond(in.Response, out, &abi.RdmaUcmDestroyIdResp{EventsReported: g.reported})
}

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

// joinIP is JOIN_IP_MCAST.
func (f *File) joinIP(in *abi.RdmaUcmJoinIpMcast, out int) syscall.Errno {
	addr, ok := decodeAddr(mmap.Bytes(&in.Addr))
	if !ok {
		return syscall.EINVAL
	}
	return f.joinGroup(in.Id, in.Uid, addr, in.Response, out)
}

// join is JOIN_MCAST.
func (f *File) join(in *abi.RdmaUcmJoinMcast, out int) syscall.Errno {
	addr, ok := decodeAddr(mmap.Bytes(&in.Addr))
	sendOnly := in.JoinFlags == abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
	if !ok || int(in.AddrSize) != addr.size() || in.JoinFlags != abi.RDMA_MC_JOIN_FLAG_FULLMEMBER && !sendOnly {
		return syscall.EINVAL
	}
	return f.joinGroup(in.Id, in.Uid, addr, in.Response, out)
}

func (f *File) joinGroup(num uint32, uid uint64, addr sockaddr, response uint64, out int) syscall.Errno {
	c, errno := f.boundContext(num)
	if errno != 0 {
		return errno
	}
	ev, errno := c.id.join(&addr)
	if errno != 0 {
		return errno
	}
	g := &group{context: c, uid: uid}
	g.num = f.m.groups.Add(g)
	if errno := respond(response, out, &abi.RdmaUcmCreateIdResp{Id: g.num}); errno != 0 {
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

// join returns the event of joining a group (cma_iboe_join_multicast). The network delivers
// the group's packets when the program attaches its QP to the group.
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
		typ: multicastJoin, qkey: i.qkey, param: connParam{qpNum: 0xffffff},
		av: verbs.AddressVector{
			Global: true, DGID: groupGID(addr), SGIDIndex: uint8(i.sgidIndex()), HopLimit: defaultHopLimit, Port: 1,
		},
	}, 0
}

// groupGID returns the GID of an IPv4 multicast group (cma_iboe_set_mgid).
func groupGID(addr *sockaddr) verbs.GID { return addr.gid() }

// setDefaultQKey sets the Q_Key if there is none (cma_set_default_qkey).
func (i *id) setDefaultQKey() {
	if i.qkey == 0 {
		i.qkey = defaultQKey
	}
}

// leave is LEAVE_MCAST.
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

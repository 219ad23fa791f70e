package ucma

import (
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/goverbs/verbs/abi"
)

// bindList has the IDs that are bound to a port (struct rdma_bind_list).
type bindList struct {
	space  uint16
	port   uint16
	owners []*id
}

// The range of ports that are chosen for IDs without one (net.ipv4.ip_local_port_range).
const firstLocalPort, lastLocalPort = 32768, 60999

// bindPort binds the ID to the port of its source address, or to a free one if that is 0
// (cma_get_port).
func (i *id) bindPort() syscall.Errno {
	space := i.space
	if i.src.family == afIB {
		space = i.selectIBSpace()
	}
	if space == 0 {
		return syscall.EPROTONOSUPPORT
	}
	if port := i.src.number(); port != 0 {
		return i.usePort(space, port)
	}
	return i.useAnyPort(space)
}

// The port spaces in the service IDs of AF_IB addresses (RDMA_IB_IP_PS_*).
const (
	ibSpaceMask = 0xffffffffffff0000
	ibSpaceTCP  = abi.RDMA_PS_TCP << 16
	ibSpaceUDP  = abi.RDMA_PS_UDP << 16
	ibSpaceIB   = abi.RDMA_PS_IB << 16
)

// selectIBSpace returns the port space that an AF_IB address selects, or 0
// (cma_select_ib_ps).
func (i *id) selectIBSpace() (space uint16) {
	mask := i.src.sidMask & ibSpaceMask
	sid := i.src.sid & mask
	var prefix uint64
	switch ib := i.space == abi.RDMA_PS_IB; {
	case ib && sid == ibSpaceIB&mask:
		space, prefix = abi.RDMA_PS_IB, ibSpaceIB
	case (ib || i.space == abi.RDMA_PS_TCP) && sid == ibSpaceTCP&mask:
		space, prefix = abi.RDMA_PS_TCP, ibSpaceTCP
	case (ib || i.space == abi.RDMA_PS_UDP) && sid == ibSpaceUDP&mask:
		space, prefix = abi.RDMA_PS_UDP, ibSpaceUDP
	default:
		return 0
	}
	i.src.sid = prefix | uint64(i.src.number())
	i.src.sidMask |= ibSpaceMask
	return space
}

func (m *Manager) bindListOf(space, port uint16) *bindList { return m.spaces[space][port] }

// own adds the ID to the owners of a port (cma_bind_port).
func (i *id) own(space, port uint16) {
	m := i.m
	list := m.bindListOf(space, port)
	if list == nil {
		list = &bindList{space: space, port: port}
		if m.spaces[space] == nil {
			m.spaces[space] = map[uint16]*bindList{}
		}
		m.spaces[space][port] = list
	}
	if i.src.family == afIB {
		i.src.sid = i.src.sid&i.src.sidMask | uint64(port)
		i.src.sidMask = 1<<64 - 1
	} else {
		i.src.port = port
	}
	list.owners = slices.Insert(list.owners, 0, i) // the newest is compared first
	i.ports = list
}

// releasePort undoes own.
func (i *id) releasePort() {
	list := i.ports
	if list == nil {
		return
	}
	i.ports = nil
	list.owners = slices.DeleteFunc(list.owners, func(x *id) bool { return x == i })
	if len(list.owners) == 0 {
		delete(i.m.spaces[list.space], list.port)
	}
}

// usePort binds the ID to a port (cma_use_port). Privileges are not needed for low ones.
func (i *id) usePort(space, port uint16) syscall.Errno {
	if list := i.m.bindListOf(space, port); list != nil {
		if errno := i.checkPort(list, i.reuse); errno != 0 {
			return errno
		}
	}
	i.own(space, port)
	return 0
}

// checkPort reports whether the ID may be bound to a port that others are bound to, or
// listen on it (cma_check_port).
func (i *id) checkPort(list *bindList, reuse bool) syscall.Errno {
	for _, other := range list.owners {
		switch {
		case other == i,
			reuse && other.reuse,
			i.afOnly.value && other.afOnly.value && i.src.family != other.src.family:
			continue
		case i.m.isAny(&i.src) || i.m.isAny(&other.src):
			return syscall.EADDRNOTAVAIL
		case i.src.equalAddr(&other.src):
			return syscall.EADDRINUSE
		}
	}
	return 0
}

// useAnyPort binds the ID to a port that it can have (cma_alloc_any_port).
func (i *id) useAnyPort(space uint16) syscall.Errno {
	const count = lastLocalPort - firstLocalPort + 1
	start := rand.IntN(count)
	for n := range count {
		port := uint16(firstLocalPort + (start+n)%count)
		if port == i.m.lastPort {
			continue
		}
		if list := i.m.bindListOf(space, port); list == nil || i.isUnique(list) {
			i.own(space, port)
			i.m.lastPort = port
			return 0
		}
	}
	return syscall.EADDRNOTAVAIL
}

// isUnique reports whether the ID's addresses differ from those of all IDs that are bound to a
// port (cma_port_is_unique).
func (i *id) isUnique(list *bindList) bool {
	return !slices.ContainsFunc(list.owners, func(other *id) bool {
		a, b := i.dst.number(), other.dst.number()
		return (a == 0 || b == 0 || a == b) &&
			!i.m.differ(&i.src, &other.src) && !i.m.differ(&i.dst, &other.dst)
	})
}

// differ reports whether two addresses differ, and neither is a wildcard.
func (m *Manager) differ(a, b *sockaddr) bool {
	return !m.isAny(a) && !m.isAny(b) && !a.equalAddr(b)
}

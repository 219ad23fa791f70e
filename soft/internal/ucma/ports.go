package ucma

import (
	"math/rand/v2"
	"slices"
	"syscall"
)

// bindList has the IDs that are bound to a port (struct rdma_bind_list).
type bindList struct {
	key    portKey
	owners []*id
}

type portKey struct{ space, port uint16 }

// The range of ports that are chosen for IDs without one (net.ipv4.ip_local_port_range).
const firstLocalPort, lastLocalPort = 32768, 60999

// bindPort binds the ID to the port of its source address, or to a free one if that is 0
// (cma_get_port).
func (i *id) bindPort() syscall.Errno {
	if port := i.src.port; port != 0 {
		return i.usePort(port)
	}
	return i.useAnyPort()
}

// own adds the ID to the owners of a port (cma_bind_port).
func (i *id) own(port uint16) {
	key := portKey{i.space, port}
	list := i.m.ports[key]
	if list == nil {
		list = &bindList{key: key}
		i.m.ports[key] = list
	}
	i.src.port = port
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
		delete(i.m.ports, list.key)
	}
}

// usePort binds the ID to a port (cma_use_port). Privileges are not needed for low ones.
func (i *id) usePort(port uint16) syscall.Errno {
	if list := i.m.ports[portKey{i.space, port}]; list != nil {
		if errno := i.checkPort(list, i.reuse); errno != 0 {
			return errno
		}
	}
	i.own(port)
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
func (i *id) useAnyPort() syscall.Errno {
	const count = lastLocalPort - firstLocalPort + 1
	start := rand.IntN(count)
	for n := range count {
		port := uint16(firstLocalPort + (start+n)%count)
		if port == i.m.lastPort {
			continue
		}
		if list := i.m.ports[portKey{i.space, port}]; list == nil || i.isUnique(list) {
			i.own(port)
			i.m.lastPort = port
			return 0
		}
	}
	return syscall.EADDRNOTAVAIL
}

// isUnique reports whether the ID's addresses differ from the addresses of all IDs that are bound
// to a port (cma_port_is_unique).
func (i *id) isUnique(list *bindList) bool {
	return !slices.ContainsFunc(list.owners, func(other *id) bool {
		a, b := i.dst.port, other.dst.port
		return (a == 0 || b == 0 || a == b) &&
			!i.m.differ(&i.src, &other.src) && !i.m.differ(&i.dst, &other.dst)
	})
}

// differ reports whether two addresses differ, and neither is a wildcard.
func (m *Manager) differ(a, b *sockaddr) bool {
	return !m.isAny(a) && !m.isAny(b) && !a.equalAddr(b)
}

package ucma

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
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

func (c *context) bind(in *abi.RdmaUcmBind, _ int) syscall.Errno {
	addr, ok := decodeAddr(mmap.Bytes(&in.Addr))
	if in.Reserved != 0 || !ok || int(in.AddrSize) != addr.size() {
		return syscall.EINVAL
	}
	return c.id.bind(addr, c.id.dst)
}

// bind binds the ID to an address and a port. dst is where it will connect to, as far as that
// is known (rdma_bind_addr_dst).
func (i *id) bind(addr, dst sockaddr) (errno syscall.Errno) {
	if i.state != idle {
		return syscall.EINVAL
	}
	if addr.family == afInet6 && addr.addr.IsLinkLocalUnicast() && addr.scope == 0 {
		return syscall.EINVAL
	}
	i.src = addr
	if !i.m.isAny(&addr) {
		if errno := i.acquireDevice(); errno != 0 {
			return errno
		}
	}
	if !i.afOnly.set {
		i.afOnly.value = addr.family == afInet
	}
	i.dst = dst
	i.dst.family = addr.family
	if errno := i.bindPort(); errno != 0 {
		i.release()
		return errno
	}
	i.state = bound
	return 0
}

// acquireDevice binds the ID to the device that has its source address
// (cma_acquire_dev_by_src_ip, rdma_translate_ip).
func (i *id) acquireDevice() syscall.Errno {
	d := i.m.deviceOf(i.src.addr)
	switch {
	case d == nil && !i.m.isLocal(i.src.zoned()):
		return syscall.EADDRNOTAVAIL
	case i.space == abi.RDMA_PS_IPOIB: // is for InfiniBand only
		return syscall.EINVAL
	case d == nil:
		return syscall.ENODEV
	}
	i.device, i.routable = d, true
	return 0
}

// isLocal reports whether the machine has an address. It releases the lock for a while.
func (m *Manager) isLocal(addr netip.Addr) bool {
	source, err := m.findSource(addr)
	return err == nil && source == addr.WithZone("")
}

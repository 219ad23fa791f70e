package ucma

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

func (f *File) bind(in *abi.RdmaUcmBind) syscall.Errno {
	addr, ok := decodeAddr(mmap.Bytes(&in.Addr))
	if in.Reserved != 0 || !ok || int(in.AddrSize) != addr.size() {
		return syscall.EINVAL
	}
	c, errno := f.context(in.Id)
	if errno != 0 {
		return errno
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

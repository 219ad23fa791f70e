package ucma

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

func (c *context) resolveAddr(in *abi.RdmaUcmResolveAddr, _ int) syscall.Errno {
	src, _ := decodeAddr(mmap.Bytes(&in.SrcAddr))
	dst, ok := decodeAddr(mmap.Bytes(&in.DstAddr))
	if in.Reserved != 0 || in.SrcSize != 0 && int(in.SrcSize) != src.size() || !ok || int(in.DstSize) != dst.size() {
		return syscall.EINVAL
	}
	return c.id.resolve(src, dst, time.Duration(in.TimeoutMs)*time.Millisecond)
}

// resolve finds the device that leads to dst. addrResolved or addrError follows
// (rdma_resolve_addr). It releases the manager's lock for a while.
func (i *id) resolve(src, dst sockaddr, timeout time.Duration) (errno syscall.Errno) {
	if i.state == bound {
		i.dst = dst
	} else {
		if src.family == 0 {
			src = wildcard(dst.family)
			src.scope = dst.scope
		}
		if errno := i.bind(src, dst); errno != 0 {
			return errno
		}
	}
	switch {
	case i.src.family != dst.family:
		return syscall.EINVAL
	case i.m.isAny(&dst):
		return i.resolveLoopback()
	}
	i.state = addrQuery
	i.query.number++
	query := i.query.number
	source, err := i.findSource()
	if i.state != addrQuery || i.query.number != query { // destroyed meanwhile
		return 0
	}
	switch errno = errnoOf(err); errno {
	case 0:
		i.resolved(source)
	case syscall.ETIMEDOUT:
		i.failLater(timeout)
		errno = 0
	default:
		i.state = bound
	}
	return errno
}

// findSource returns the local address for packets to the destination (addr_resolve). It
// releases the lock for a while.
func (i *id) findSource() (netip.Addr, error) {
	m := i.m
	given := !m.isAny(&i.src)
	if m.deviceOf(i.dst.addr) != nil {
		if given {
			return i.src.addr, nil
		}
		return i.dst.addr, nil
	}
	source, err := m.findSource(i.dst.zoned())
	if given && errnoOf(err) != syscall.ETIMEDOUT { // packets go out at the interface with the address
		return i.src.addr, nil
	}
	return source, err
}

// resolved ends the resolution of an address (addr_handler).
func (i *id) resolved(source netip.Addr) {
	if i.src.family == afInet6 && source.Is4() { // of an IPv4 address in IPv6's form
		source = netip.AddrFrom16(source.As16())
	}
	old := i.src.addr
	i.src.addr = source
	if i.device == nil {
		d, errno := i.m.deviceOf(source), syscall.Errno(0)
		switch {
		case i.space == abi.RDMA_PS_IPOIB: // is for InfiniBand only
			errno = syscall.EINVAL
		case d == nil:
			errno = syscall.ENODEV
		}
		if errno != 0 {
			i.src.addr = old
			i.failed(errno)
			return
		}
		i.device, i.routable = d, true
	}
	i.state = addrKnown
	i.handler(i, &event{typ: addrResolved})
}

// defaultHopLimit is the hop limit of routes (net.ipv4.ip_default_ttl).
const defaultHopLimit = 64

// failLater reports after a time that no host has the destination's address.
func (i *id) failLater(timeout time.Duration) {
	query := i.query.number
	i.query.late = time.AfterFunc(timeout, func() {
		i.m.lock()
		defer i.m.unlock()
		if i.state == addrQuery && i.query.number == query {
			i.failed(syscall.ETIMEDOUT)
		}
	})
}

func (i *id) failed(errno syscall.Errno) {
	i.state = bound
	i.handler(i, &event{typ: addrError, status: -int(errno)})
}

// query is the resolution of an address. Its number tells it from those before, as the manager is
// unlocked while it lasts.
type query struct {
	number int
	late   *time.Timer // of one that will fail
}

func (q *query) cancel() {
	if q.late != nil {
		q.late.Stop()
	}
}

// resolveLoopback resolves a loopback address. It leads to the first device, but has no route
// (cma_resolve_loopback).
func (i *id) resolveLoopback() syscall.Errno {
	if i.device == nil {
		d := i.m.firstDevice()
		if d == nil {
			return syscall.ENODEV
		}
		i.device = d
		i.src.addr = netip.IPv6Loopback()
		if i.src.family == afInet {
			i.src.addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	i.state = addrKnown
	i.handler(i, &event{typ: addrResolved})
	return 0
}

// firstDevice returns the first device whose port is active, or else the first one, or nil.
func (m *Manager) firstDevice() *Device {
	if len(m.devices) == 0 {
		return nil
	}
	active := func(d *Device) bool { return d.transport.PortAttr().State == verbs.PortActive }
	return m.devices[max(slices.IndexFunc(m.devices, active), 0)]
}

func (c *context) resolveRoute(in *abi.RdmaUcmResolveRoute, _ int) syscall.Errno {
	if in.TimeoutMs == 0 {
		return syscall.EINVAL
	}
	return c.id.resolveRoute()
}

// lifetime is the packet lifetime of paths, 4.096 µs * 2^16 (CMA_IBOE_PACKET_LIFETIME).
const lifetime = 16

// resolveRoute makes the path. routeResolved follows (cma_resolve_iboe_route).
func (i *id) resolveRoute() syscall.Errno {
	switch {
	case i.state != addrKnown:
		return syscall.EINVAL
	case !i.hasRoute():
		return syscall.ENODEV
	}
	p := &ibcm.Path{
		SGID: i.src.gid(), DGID: i.dst.gid(), HopLimit: defaultHopLimit, Reversible: true, PKey: defaultPKey,
		MTUSelector: ibcm.SelectEqual, MTU: i.device.transport.PortAttr().ActiveMTU,
		RateSelector: ibcm.SelectEqual, LifetimeSelector: ibcm.SelectEqual, Lifetime: lifetime,
		FlowLabel: i.flowLabel(),
	}
	if i.tos.set {
		p.TrafficClass = i.tos.value
	}
	if i.ackTimeout.value > 0 {
		p.Lifetime = i.ackTimeout.value - 1
	}
	i.path = p
	i.state = routeKnown
	i.handler(i, &event{typ: routeResolved})
	return 0
}

// defaultPKey is the P_Key of RoCE.
const defaultPKey = 0xffff

// hasRoute reports whether packets to the destination can be sent. A loopback address does not
// lead anywhere.
func (i *id) hasRoute() bool { return i.routable && !i.m.isAny(&i.dst) }

// flowLabel returns the flow label of the path (cma_get_roce_udp_flow_label).
func (r *route) flowLabel() uint32 {
	const mask = 0xfffff
	if label := r.src.flow & mask; r.src.family == afInet6 && label != 0 {
		return label
	}
	return (uint32(r.src.port)*31 + uint32(r.dst.port)) & mask
}

package ucma

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// bigEndian16 and bigEndian32 return v so that its bytes in memory are in network byte order.
func bigEndian16(v uint16) (be uint16) {
	binary.BigEndian.PutUint16(mmap.Bytes(&be), v)
	return be
}

func bigEndian32(v uint32) (be uint32) {
	binary.BigEndian.PutUint32(mmap.Bytes(&be), v)
	return be
}

// Sizes of abi.RdmaUcmQueryRouteResp and abi.RdmaUcmQueryAddrResp in older programs, which do not
// ask for the device's index.
const (
	routeWithoutIndex = 200
	addrWithoutIndex  = 272
)

// queryRoute is QUERY_ROUTE.
func (f *File) queryRoute(in *abi.RdmaUcmQuery, out int) syscall.Errno {
	var r abi.RdmaUcmQueryRouteResp
	if out < routeWithoutIndex {
		return syscall.ENOSPC
	}
	c, errno := f.context(in.Id)
	if errno != 0 {
		return errno
	}
	i := c.id
	for _, a := range []struct {
		from *sockaddr
		to   *abi.SockaddrIn6
	}{{&i.src, &r.SrcAddr}, {&i.dst, &r.DstAddr}} {
		if a.from.family != afIB {
			a.from.encode(mmap.Bytes(a.to))
		}
	}
	if i.device != nil {
		copy(mmap.Bytes(&r.NodeGuid), i.device.guid[:])
		r.IbdevIndex, r.PortNum = uint32(i.device.index), 1
		if i.path != nil {
			r.NumPaths = 1
			r.IbRoute[0] = userPath(i.path)
		} else {
			r.IbRoute[0] = abi.IbUserPathRec{Sgid: i.src.gid(), Dgid: i.dst.gid(), Pkey: bigEndian16(defaultPKey)}
		}
	}
	return respond(in.Response, out, &r)
}

// query is QUERY.
func (f *File) query(in *abi.RdmaUcmQuery, out int) syscall.Errno {
	c, errno := f.context(in.Id)
	if errno != 0 {
		return errno
	}
	switch in.Option {
	case abi.RDMA_USER_CM_QUERY_ADDR:
		return c.id.queryAddr(in.Response, out)
	case abi.RDMA_USER_CM_QUERY_PATH:
		return c.id.queryPath(in.Response, out)
	case abi.RDMA_USER_CM_QUERY_GID:
		return c.id.queryGID(in.Response, out)
	}
	return syscall.ENOSYS
}

// deviceAddr returns the fields of a query that describe the device
// (ucma_query_device_addr).
func (r *route) deviceAddr() (q abi.RdmaUcmQueryAddrResp) {
	if d := r.device; d != nil {
		copy(mmap.Bytes(&q.NodeGuid), d.guid[:])
		q.IbdevIndex, q.PortNum = uint32(d.index), 1
	}
	return q
}

func (i *id) queryAddr(addr uint64, out int) syscall.Errno {
	r := i.deviceAddr()
	if out < addrWithoutIndex {
		return syscall.ENOSPC
	}
	r.SrcSize, r.DstSize = uint16(i.src.size()), uint16(i.dst.size())
	i.src.encode(mmap.Bytes(&r.SrcAddr))
	i.dst.encode(mmap.Bytes(&r.DstAddr))
	return respond(addr, out, &r)
}

func (i *id) queryGID(addr uint64, out int) syscall.Errno {
	r := i.deviceAddr()
	if out < addrWithoutIndex {
		return syscall.ENOSPC
	}
	r.SrcSize, r.DstSize = sizeofIB, sizeofIB
	i.ibAddr(&i.src).encode(mmap.Bytes(&r.SrcAddr))
	i.ibAddr(&i.dst).encode(mmap.Bytes(&r.DstAddr))
	return respond(addr, out, &r)
}

// ibAddr returns an address as a GID and a service ID.
func (i *id) ibAddr(a *sockaddr) *sockaddr {
	if a.family == afIB {
		return a
	}
	ib := &sockaddr{family: afIB, sid: i.serviceID(a)}
	if i.device != nil {
		ib.addr = netip.AddrFrom16(a.gid())
	}
	return ib
}

func (i *id) queryPath(addr uint64, out int) syscall.Errno {
	var r struct {
		head abi.RdmaUcmQueryPathResp
		path abi.IbPathRecData
	}
	head := len(mmap.Bytes(&r.head))
	if out < head {
		return syscall.ENOSPC
	}
	b := mmap.Bytes(&r)
	if i.path == nil {
		b = b[:head]
	} else {
		r.head.NumPaths = 1
		if out < len(b) {
			b = b[:head]
		}
		r.path.Flags = abi.IB_PATH_GMP | abi.IB_PATH_PRIMARY | abi.IB_PATH_BIDIRECTIONAL
		i.path.Pack(mmap.Bytes(&r.path.PathRec))
	}
	return copyOut(addr, len(b), b)
}

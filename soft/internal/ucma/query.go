package ucma

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// addrWithoutIndex is the size of abi.RdmaUcmQueryAddrResp in older programs, which do not ask for
// the device's index.
const addrWithoutIndex = 272

func (c *context) query(in *abi.RdmaUcmQuery, out int) syscall.Errno {
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
	i.encodeIB(&i.src, mmap.Bytes(&r.SrcAddr))
	i.encodeIB(&i.dst, mmap.Bytes(&r.DstAddr))
	return respond(addr, out, &r)
}

// encodeIB writes an address to b as a GID and a service ID (struct sockaddr_ib).
func (i *id) encodeIB(a *sockaddr, b []byte) {
	binary.NativeEndian.PutUint16(b, afIB)
	binary.BigEndian.PutUint64(b[24:], i.serviceID(a.port))
	if g := a.gid(); i.device != nil {
		copy(b[8:], g[:])
	}
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

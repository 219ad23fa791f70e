package cm

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// PathRecord is a path between two ports as InfiniBand's subnet administrator describes
// it (PathRecord, InfiniBand specification 1, 15.2.5.16). On RoCE the kernel makes one. A record
// of [ID.PathRecords] also keeps what has no field here.
type PathRecord struct {
	ServiceID    uint64
	DGID, SGID   verbs.GID // destination and source
	DLID, SLID   uint16
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	PKey         uint16
	SL           uint8 // 4 bits: service level
	MTU          verbs.MTU
	Rate         verbs.Rate
	Lifetime     uint8 // 6 bits: a packet lives for 4.096 µs * 2^Lifetime

	kernel abi.IbPathRecData // of PathRecords, or zero
}

// Offsets in a record, in bytes.
const (
	pathServiceID = 0
	pathDGID      = 8
	pathSGID      = 24
	pathDLID      = 40
	pathSLID      = 42
	pathFlow      = 44 // raw traffic, flow label, hop limit
	pathTClass    = 48
	pathPKey      = 50
	pathSL        = 53 // below 4 bits of the QoS class
	pathMTU       = 54 // 6 bits below a selector, as the next two
	pathRate      = 55
	pathLifetime  = 56
)

// encode makes a record that the program has filled in itself the primary path, in both directions,
// as ucma_set_ib_path demands.
func (p *PathRecord) encode() abi.IbPathRecData {
	r := p.kernel
	if r.Flags == 0 {
		r.Flags = abi.IB_PATH_GMP | abi.IB_PATH_PRIMARY | abi.IB_PATH_BIDIRECTIONAL
	}
	b, be := mmap.Bytes(&r.PathRec), binary.BigEndian
	be.PutUint64(b[pathServiceID:], p.ServiceID)
	copy(b[pathDGID:], p.DGID[:])
	copy(b[pathSGID:], p.SGID[:])
	be.PutUint16(b[pathDLID:], p.DLID)
	be.PutUint16(b[pathSLID:], p.SLID)
	be.PutUint32(b[pathFlow:], be.Uint32(b[pathFlow:])&^0xfffffff|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	b[pathTClass] = p.TrafficClass
	be.PutUint16(b[pathPKey:], p.PKey)
	low := func(at int, mask, v byte) { b[at] = b[at]&^mask | v&mask }
	low(pathSL, 0xf, p.SL)
	low(pathMTU, 0x3f, byte(p.MTU))
	low(pathRate, 0x3f, byte(p.Rate))
	low(pathLifetime, 0x3f, p.Lifetime)
	return r
}

func (p *PathRecord) decode(r *abi.IbPathRecData) {
	b, be := mmap.Bytes(&r.PathRec), binary.BigEndian
	flow := be.Uint32(b[pathFlow:])
	*p = PathRecord{
		ServiceID: be.Uint64(b[pathServiceID:]),
		DGID:      verbs.GID(b[pathDGID:]), SGID: verbs.GID(b[pathSGID:]),
		DLID: be.Uint16(b[pathDLID:]), SLID: be.Uint16(b[pathSLID:]),
		FlowLabel: flow >> 8 & 0xfffff, HopLimit: uint8(flow), TrafficClass: b[pathTClass],
		PKey: be.Uint16(b[pathPKey:]), SL: b[pathSL] & 0xf,
		MTU: verbs.MTU(b[pathMTU] & 0x3f), Rate: verbs.Rate(b[pathRate] & 0x3f), Lifetime: b[pathLifetime] & 0x3f,
		kernel: *r,
	}
}

// SetPath sets the ID's path, and optionally others for replies or as a fallback, instead of
// resolving one. [ID.PathRecords] of another ID returns such paths. SetPath is for InfiniBand
// and RoCE.
func (id *ID) SetPath(paths ...PathRecord) error {
	var records []byte
	for i := range paths {
		r := paths[i].encode()
		records = append(records, mmap.Bytes(&r)...)
	}
	return id.setOption("paths", abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, records)
}

// PathRecords returns the paths of a resolved route.
func (id *ID) PathRecords() ([]PathRecord, error) {
	var r struct {
		head abi.RdmaUcmQueryPathResp
		path [2]abi.IbPathRecData
	}
	req := abi.RdmaUcmQuery{Id: id.handle, Option: abi.RDMA_USER_CM_QUERY_PATH}
	if err := idQuery(id, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response, &r); err != nil {
		return nil, fail("query path of ID", "", err)
	}
	paths := make([]PathRecord, min(int(r.head.NumPaths), len(r.path)))
	for i := range paths {
		paths[i].decode(&r.path[i])
	}
	return paths, nil
}

package cm

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// PathRecord is a path between two ports as InfiniBand's subnet administrator describes
// it (PathRecord, InfiniBand specification 1, 15.2.5.16). On RoCE the kernel makes one.
type PathRecord struct {
	Flags PathFlags

	ServiceID    uint64
	DGID, SGID   verbs.GID // destination and source
	DLID, SLID   uint16
	RawTraffic   bool
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	Reversible   bool
	Paths        uint8 // 7 bits: the most paths that a query returns
	PKey         uint16
	QoSClass     uint16 // 12 bits
	SL           uint8  // 4 bits: service level
	MTU          verbs.MTU
	Rate         verbs.Rate
	Lifetime     uint8 // 6 bits: a packet lives for 4.096 µs * 2^Lifetime
	Preference   uint8

	// How a query for the path compares MTU, Rate and Lifetime.
	MTUSelector, RateSelector, LifetimeSelector PathSelector
}

// PathFlags are the uses of a path (IB_PATH_* in rdma/ib_user_sa.h).
type PathFlags uint32

const (
	PathGMP            PathFlags = abi.IB_PATH_GMP
	PathPrimary        PathFlags = abi.IB_PATH_PRIMARY
	PathAlternate      PathFlags = abi.IB_PATH_ALTERNATE
	PathOutbound       PathFlags = abi.IB_PATH_OUTBOUND
	PathInbound        PathFlags = abi.IB_PATH_INBOUND
	PathInboundReverse PathFlags = abi.IB_PATH_INBOUND_REVERSE
	PathBidirectional            = PathOutbound | PathInboundReverse
)

// PathSelector is how a query compares a value (enum ib_sa_selector).
type PathSelector uint8

const (
	SelectGreater PathSelector = iota
	SelectLess
	SelectEqual
	SelectBest
)

// Offsets in a record, in bytes.
const (
	pathServiceID = 0
	pathDGID      = 8
	pathSGID      = 24
	pathDLID      = 40
	pathSLID      = 42
	pathFlow      = 44 // raw traffic, flow label, hop limit
	pathTClass    = 48
	pathPaths     = 49 // and whether it is reversible
	pathPKey      = 50
	pathQoS       = 52 // and the service level
	pathMTU       = 54 // the selector and 6 bits, as the next two
	pathRate      = 55
	pathLifetime  = 56
	pathPrefer    = 57
)

func (p *PathRecord) encode() abi.IbPathRecData {
	r := abi.IbPathRecData{Flags: uint32(p.Flags)}
	b, be := mmap.Bytes(&r.PathRec), binary.BigEndian
	be.PutUint64(b[pathServiceID:], p.ServiceID)
	copy(b[pathDGID:], p.DGID[:])
	copy(b[pathSGID:], p.SGID[:])
	be.PutUint16(b[pathDLID:], p.DLID)
	be.PutUint16(b[pathSLID:], p.SLID)
	be.PutUint32(b[pathFlow:], bit(p.RawTraffic)<<31|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	b[pathTClass] = p.TrafficClass
	b[pathPaths] = byte(bit(p.Reversible)<<7) | p.Paths&0x7f
	be.PutUint16(b[pathPKey:], p.PKey)
	be.PutUint16(b[pathQoS:], p.QoSClass<<4|uint16(p.SL&0xf))
	b[pathMTU] = byte(p.MTUSelector)<<6 | byte(p.MTU)&0x3f
	b[pathRate] = byte(p.RateSelector)<<6 | byte(p.Rate)&0x3f
	b[pathLifetime] = byte(p.LifetimeSelector)<<6 | p.Lifetime&0x3f
	b[pathPrefer] = p.Preference
	return r
}

func (p *PathRecord) decode(r *abi.IbPathRecData) {
	b, be := mmap.Bytes(&r.PathRec), binary.BigEndian
	flow, qos := be.Uint32(b[pathFlow:]), be.Uint16(b[pathQoS:])
	*p = PathRecord{
		Flags:     PathFlags(r.Flags),
		ServiceID: be.Uint64(b[pathServiceID:]),
		DGID:      verbs.GID(b[pathDGID:]), SGID: verbs.GID(b[pathSGID:]),
		DLID: be.Uint16(b[pathDLID:]), SLID: be.Uint16(b[pathSLID:]),
		RawTraffic: flow>>31 != 0, FlowLabel: flow >> 8 & 0xfffff, HopLimit: uint8(flow),
		TrafficClass: b[pathTClass], Reversible: b[pathPaths]>>7 != 0, Paths: b[pathPaths] & 0x7f,
		PKey: be.Uint16(b[pathPKey:]), QoSClass: qos >> 4, SL: uint8(qos & 0xf),
		MTU: verbs.MTU(b[pathMTU] & 0x3f), MTUSelector: PathSelector(b[pathMTU] >> 6),
		Rate: verbs.Rate(b[pathRate] & 0x3f), RateSelector: PathSelector(b[pathRate] >> 6),
		Lifetime: b[pathLifetime] & 0x3f, LifetimeSelector: PathSelector(b[pathLifetime] >> 6),
		Preference: b[pathPrefer],
	}
}

func bit(set bool) uint32 {
	if set {
		return 1
	}
	return 0
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

package verbs

import "fmt"

// DeviceAttr contains the limits and capabilities of a device (ibv_query_device_ex(3)).
// Limits that a driver does not have are 0. The fields are the ones of the kernel's struct
// ib_uverbs_query_device_resp and its extensions.
type DeviceAttr struct {
	FirmwareVersion uint64 // major, minor and patch of 16 bits each, see Firmware
	NodeGUID        GUID
	SysImageGUID    GUID
	VendorID        uint32
	VendorPartID    uint32
	HWVersion       uint32
	Ports           int

	MaxMRSize   uint64 // bytes
	PageSizeCap uint64 // bit n: pages of 2^n bytes
	CapFlags    uint64 // enum ib_uverbs_device_cap_flags

	MaxQP      int
	MaxQPWR    int // work requests of a queue
	MaxSGE     int // of a work request
	MaxSGERead int // of an RDMA READ
	MaxCQ      int
	MaxCQE     int // completions of a CQ
	MaxMR      int
	MaxPD      int
	MaxMW      int
	MaxAH      int
	MaxSRQ     int
	MaxSRQWR   int
	MaxSRQSGE  int
	MaxPKeys   int

	MaxQPRDAtomic     int // RDMA READs and atomics that a QP answers at a time
	MaxResRDAtomic    int // RDMA READs and atomics that the device answers at a time
	MaxQPInitRDAtomic int // RDMA READs and atomics that a QP has in flight
	AtomicCap         AtomicCap

	MaxMcastGroup         int
	MaxMcastQPAttach      int // QPs of a group
	MaxTotalMcastQPAttach int
	MaxRawIPv6QP          int
	MaxRawEthernetQP      int

	// Limits of reliable datagrams, which no Linux driver supports, and of FMRs, which
	// Linux 5.8 removed.
	MaxEE, MaxRDD, MaxEERDAtomic, MaxEEInitRDAtomic, MaxFMR, MaxMapPerFMR int

	LocalCAAckDelay uint8 // 4.096 µs * 2^LocalCAAckDelay

	ODP            ODPCaps
	TimestampMask  uint64 // valid bits of completion timestamps
	CoreClock      uint64 // kHz, of the device's clock
	RSS            RSSCaps
	MaxWQTypeRQ    int
	RawPacketCaps  uint32 // enum ib_uverbs_raw_packet_caps
	TagMatching    TagMatchingCaps
	MaxCQModCount  int // completions, see uverbs.CQ.Moderate
	MaxCQModPeriod int // µs
	MaxDMSize      uint64
}

// Firmware returns FirmwareVersion as text: 1.2.3.
func (a *DeviceAttr) Firmware() string {
	v := a.FirmwareVersion
	return fmt.Sprintf("%d.%d.%d", v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

// AtomicCap is the scope of a device's atomic operations (enum ib_atomic_cap).
type AtomicCap uint32

const (
	AtomicNone   AtomicCap = iota
	AtomicHCA              // atomic with other operations of the device
	AtomicGlobal           // atomic with operations of the processors as well
)

func (c AtomicCap) String() string {
	return pick(c, "none", "HCA", "global")
}

// ODPCaps describes a device's support for on-demand paging. General has bits of enum
// ib_uverbs_odp_general_cap_bits. The others, one for each transport, have bits of enum
// ib_uverbs_odp_transport_cap_bits.
type ODPCaps struct {
	General         uint64
	RC, UC, UD, XRC uint32
}

// RSSCaps describes a device's support for receive-side scaling.
type RSSCaps struct {
	QPTypes                    uint32 // bit for each QPType
	MaxRWQIndirectionTables    int
	MaxRWQIndirectionTableSize int
}

// TagMatchingCaps describes a device's support for tag matching.
type TagMatchingCaps struct {
	MaxRendezvousHeader int // bytes
	MaxTags             int
	MaxOps              int
	MaxSGE              int
	Flags               uint32 // enum ib_uverbs_tm_cap_flags
}

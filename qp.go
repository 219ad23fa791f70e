package verbs

import (
	"cmp"
	"fmt"
)

// QPType is the transport of a QP (enum ib_uverbs_qp_type).
type QPType uint32

const (
	RC QPType = 2 // reliable connection
	UC QPType = 3 // unreliable connection
	UD QPType = 4 // unreliable datagram
)

// The dynamically connected transport (DC), of ConnectX adapters. An initiator sends to any number
// of targets, one after the other, as reliably as RC: the adapter connects to the target that a
// request names, so that n programs need n targets, where RC needs n² connections. An initiator
// only sends, a target only receives, from an SRQ. The kernel knows both as "DRIVER", which is 255,
// and the numbers here are of this library alone. See uverbs.QP.StartDC.
const (
	DCI QPType = 256 // initiator
	DCT QPType = 257 // target
)

// String returns the name of the type, including types that programs cannot create here, such as
// "GSI" (enum ib_qp_type of the kernel).
func (t QPType) String() string {
	if s, ok := qpTypeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("QP type %d", uint32(t))
}

var qpTypeNames = map[QPType]string{
	0: "SMI", 1: "GSI", RC: "RC", UC: "UC", UD: "UD", 5: "RAW_IPV6", 6: "RAW_ETHERTYPE", 8: "RAW_PACKET",
	9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER", DCI: "DCI", DCT: "DCT",
}

// QPState is the state of a QP (enum ib_qp_state).
type QPState uint32

const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

func (s QPState) String() string {
	return pick(s, "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
}

// QPCap is the size of a QP's queues, as requested or as created. In a request, zero
// selects the default, see [QPCap.WithDefaults], or what the device takes if that is less, and a
// negative number selects 0.
type QPCap struct {
	MaxSendWR, MaxRecvWR   int // work requests
	MaxSendSGE, MaxRecvSGE int // SGEs of a work request
	MaxInline              int // bytes of a work request
}

// WithDefaults returns c with defaults for the fields that are zero (64 work requests each way, 2
// SGEs each, 64 bytes of inline data), and with 0 for those that are negative.
func (c QPCap) WithDefaults() QPCap {
	size := func(n, zero int) int { return max(cmp.Or(n, zero), 0) }
	return QPCap{
		MaxSendWR: size(c.MaxSendWR, 64), MaxRecvWR: size(c.MaxRecvWR, 64),
		MaxSendSGE: size(c.MaxSendSGE, 2), MaxRecvSGE: size(c.MaxRecvSGE, 2),
		MaxInline: size(c.MaxInline, 64),
	}
}

// QPAttr contains the attributes of a QP (ibv_modify_qp(3), ibv_query_qp(3)). A [QPAttrMask]
// selects those that a call sets.
type QPAttr struct {
	State           QPState
	CurState        QPState
	PathMTU         MTU
	PathMigState    PathMigState
	QKey            uint32
	RQPSN, SQPSN    uint32 // 24 bits
	DestQPNum       uint32 // 24 bits
	Access          Access // granted to the peer
	AV, AltAV       AddressVector
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	SQDAsyncNotify  bool
	SQDraining      bool // query only
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8 // 5 bits, InfiniBand specification 1, table 45; 12 is 0.64 ms
	Port, AltPort   uint8
	Timeout         uint8 // 4.096 µs * 2^Timeout; 0 is infinite
	AltTimeout      uint8
	RetryCount      uint8 // 0 to 7
	RNRRetry        uint8 // 0 to 6; 7 is infinite

	// ECE is the peer's offer, from INIT to RTR (ibv_set_ece(3)). Without it, if it is another
	// vendor's, or on devices without extensions the QP uses none. It has no bit in the mask.
	ECE ECE

	Cap       QPCap // query only
	SignalAll bool  // query only
}

// QPAttrMask selects attributes of a [QPAttr] (enum ib_qp_attr_mask).
type QPAttrMask uint32

const (
	MaskState QPAttrMask = 1 << iota
	MaskCurState
	MaskSQDAsyncNotify
	MaskAccess
	MaskPKeyIndex
	MaskPort
	MaskQKey
	MaskAV
	MaskPathMTU
	MaskTimeout
	MaskRetryCount
	MaskRNRRetry
	MaskRQPSN
	MaskMaxRDAtomic
	MaskAltPath
	MaskMinRNRTimer
	MaskSQPSN
	MaskMaxDestRDAtomic
	MaskPathMigState
	MaskCap
	MaskDestQPNum
)

var maskNames = [...]string{
	"State", "CurState", "SQDAsyncNotify", "Access", "PKeyIndex", "Port", "QKey", "AV", "PathMTU", "Timeout",
	"RetryCount", "RNRRetry", "RQPSN", "MaxRDAtomic", "AltPath", "MinRNRTimer", "SQPSN", "MaxDestRDAtomic",
	"PathMigState", "Cap", "DestQPNum",
}

// String returns the names of the attributes: Port, Access.
func (m QPAttrMask) String() string {
	return bitNames(uint32(m), ", ", maskNames[:])
}

// AddressVector is the path to a peer.
type AddressVector struct {
	// Global is set if the vector has a global route (the fields up to TrafficClass),
	// which RoCE requires.
	Global       bool
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8

	DLID        uint16
	SL          uint8 // service level
	SrcPathBits uint8
	StaticRate  Rate
	Port        uint8
}

// PathMigState is the state of InfiniBand's migration to an alternate path (enum ib_mig_state).
type PathMigState uint8

const (
	PathMigrated PathMigState = iota
	PathRearm
	PathArmed
)

func (s PathMigState) String() string { return pick(s, "MIGRATED", "REARM", "ARMED") }

// MTU is a path MTU in InfiniBand's coding (enum ib_mtu).
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the MTU in bytes, or 0 if it is invalid.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprintf("%d (%d)", m.Bytes(), uint8(m)) }

// Rate limits the data rate of a path (enum ib_rate). The zero Rate is the port's current rate.
type Rate uint8

// rateMbps contains the rates in Mb/s, and 0 for numbers that are not a Rate.
var rateMbps = [...]int{
	2: 2500, 3: 10000, 4: 30000, 5: 5000, 6: 20000, 7: 40000, 8: 60000, 9: 80000, 10: 120000,
	11: 14062, 12: 56250, 13: 112500, 14: 168750, 15: 25781, 16: 103125, 17: 206250, 18: 309375,
	19: 28125, 20: 53125, 21: 425000, 22: 637500, 23: 850000, 24: 1275000,
}

// Mbps returns the rate in Mb/s (ibv_rate_to_mbps(3)), or 0 if r sets no limit.
func (r Rate) Mbps() int {
	if int(r) < len(rateMbps) {
		return rateMbps[r]
	}
	return 0
}

// RateOf returns the fastest rate that does not exceed mbps, or else the slowest rate.
func RateOf(mbps int) Rate {
	best := Rate(2)
	for r, m := range rateMbps {
		if m > rateMbps[best] && m <= mbps {
			best = Rate(r)
		}
	}
	return best
}

// GRHSize is the number of bytes at the start of every UD receive's buffer that are
// reserved for the global route header.
const GRHSize = 40

package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// WCStatus is the outcome of a work request (enum ib_wc_status).
type WCStatus uint32

const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

var statusNames = [...]string{
	"success",
	"local length error",
	"local QP operation error",
	"local EE context operation error",
	"local protection error",
	"work request flushed",
	"memory window bind error",
	"bad response",
	"local access error",
	"remote invalid request",
	"remote access error",
	"remote operation error",
	"transport retries exceeded",
	"receiver-not-ready retries exceeded",
	"local RDD violation",
	"remote invalid RD request",
	"remote aborted",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout",
	"general error",
}

func (s WCStatus) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown status"
}

// Error implements error, so that errors.Is finds a WCStatus in the error that [WC.Err] returns.
func (s WCStatus) Error() string { return "work completion: " + s.String() }

// WCOpcode is the operation that completed (enum ib_uverbs_wc_opcode).
type WCOpcode uint32

const (
	WCSend        WCOpcode = 0
	WCRDMAWrite   WCOpcode = 1
	WCRDMARead    WCOpcode = 2
	WCCompareSwap WCOpcode = 3
	WCFetchAdd    WCOpcode = 4
	WCBindMW      WCOpcode = 5
	WCLocalInv    WCOpcode = 6
	WCFlush       WCOpcode = 8
	WCAtomicWrite WCOpcode = 9
	WCRecv        WCOpcode = 1 << 7
	WCRecvRDMAImm WCOpcode = 1<<7 + 1
)

var wcOpcodeNames = map[WCOpcode]string{
	WCSend:        "SEND",
	WCRDMAWrite:   "RDMA_WRITE",
	WCRDMARead:    "RDMA_READ",
	WCCompareSwap: "COMP_SWAP",
	WCFetchAdd:    "FETCH_ADD",
	WCBindMW:      "BIND_MW",
	WCLocalInv:    "LOCAL_INV",
	WCFlush:       "FLUSH",
	WCAtomicWrite: "ATOMIC_WRITE",
	WCRecv:        "RECV",
	WCRecvRDMAImm: "RECV_RDMA_WITH_IMM",
}

func (o WCOpcode) String() string { return name(wcOpcodeNames, o) }

// WCFlags report which fields of a [WC] are valid (enum ib_uverbs_wc_flags).
type WCFlags uint32

const (
	WCGRH     WCFlags = 1 << 0 // a GRH is in the first 40 bytes of the buffer
	WCWithImm WCFlags = 1 << 1 // see [WC.Imm]
	WCWithInv WCFlags = 1 << 3 // see [WC.InvalidatedRKey]

	// WCIPv4 and WCIPv6 are set by devices that know which header the GRH is (mlx5 on Ethernet).
	// The kernel's interface has no such flags.
	WCIPv4 WCFlags = 1 << 6
	WCIPv6 WCFlags = 1 << 7
)

// WC is a work completion. Unless Status is [WCSuccess] only ID, Status, VendorErr and QPNum are
// valid. It begins as the kernel's struct ib_uverbs_wc does, so that drivers can copy that.
type WC struct {
	ID        uint64
	Status    WCStatus
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32 // of a receive or read
	ex        [4]byte
	QPNum     uint32 // local QP
	SrcQP     uint32 // peer's QP, UD only
	Flags     WCFlags
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	PathBits  uint8
	Port      uint8
	_         uint8
	Timestamp uint64 // when the device completed the request, as the CQ's [TimestampFormat] says; otherwise 0
}

// TimestampFormat is what the Timestamps of a CQ's completions are.
type TimestampFormat uint8

const (
	// TimestampNone is for CQs without timestamps.
	TimestampNone TimestampFormat = iota
	// TimestampCycles is the device's free-running counter (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).
	// uverbs.Clock makes times and durations of it.
	TimestampCycles
	// TimestampRealTime is nanoseconds since 1970, by a clock of the device that PTP sets, as
	// linuxptp does (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK of ConnectX-6 Dx and later):
	// time.Unix(0, int64(wc.Timestamp)). Both CQs of a QP have it or neither.
	TimestampRealTime
)

// GRHAddrs returns the addresses in the GRH of a datagram, the first [GRHSize] bytes of its buffer.
// They are invalid if grh is no header. An IPv4 header takes the last 20 bytes of the GRH; the
// bytes before it are undefined (annex A17.4.5.2), and may be the rest of an IPv6 header. So
// without WCIPv4 or WCIPv6 a valid checksum means IPv4, as for ibv_init_ah_from_wc(3).
func (w *WC) GRHAddrs(grh []byte) (src, dst netip.Addr) {
	if w.Flags&WCGRH == 0 || len(grh) < GRHSize {
		return src, dst
	}
	ip := grh[20:GRHSize]
	v4, v6 := ip[0]>>4 == 4, grh[0]>>4 == 6
	switch {
	case w.Flags&WCIPv4 != 0:
		v6 = false
	case w.Flags&WCIPv6 != 0:
		v4 = false
	case v4 && v6:
		v4 = ip[0] == 0x45 && validIPv4(ip)
	}
	switch {
	case v4:
		return netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case v6:
		return netip.AddrFrom16([16]byte(grh[8:])), netip.AddrFrom16([16]byte(grh[24:]))
	}
	return src, dst
}

// validIPv4 reports whether the checksum of an IPv4 header is right.
func validIPv4(ip []byte) bool {
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	return sum>>16+sum&0xffff == 0xffff
}

// Imm returns the immediate, in host byte order. It is valid if Flags has [WCWithImm].
func (w *WC) Imm() uint32 { return binary.BigEndian.Uint32(w.ex[:]) }

// InvalidatedRKey returns the key that a SEND_WITH_INV invalidated. It is valid if Flags
// has [WCWithInv].
func (w *WC) InvalidatedRKey() uint32 { return binary.NativeEndian.Uint32(w.ex[:]) }

// Err returns nil for a successful completion, and otherwise a [*WCError] that wraps Status.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{ID: w.ID, QPNum: w.QPNum, Status: w.Status, VendorErr: w.VendorErr}
}

// WCError describes a failed work completion. errors.Is finds its [WCStatus].
type WCError struct {
	ID        uint64
	QPNum     uint32
	Status    WCStatus
	VendorErr uint32
}

func (e *WCError) Error() string {
	s := fmt.Sprintf("work request %#x on QP %d: %v", e.ID, e.QPNum, e.Status.String())
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorErr)
	}
	return s
}

func (e *WCError) Unwrap() error { return e.Status }

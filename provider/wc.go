package provider

import (
	"encoding/binary"

	"github.com/goverbs/verbs/abi"
)

// WCStatus is how a work request ended. Values are the kernel's
// (enum ib_wc_status).
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

// Error makes a failed status usable as an error; see [WC.Err].
func (s WCStatus) Error() string { return "work completion: " + s.String() }

// WCOpcode is what completed. Values are the kernel's (enum ib_uverbs_wc_opcode).
type WCOpcode uint32

const (
	WCSend        WCOpcode = abi.IB_UVERBS_WC_SEND
	WCRDMAWrite   WCOpcode = abi.IB_UVERBS_WC_RDMA_WRITE
	WCRDMARead    WCOpcode = abi.IB_UVERBS_WC_RDMA_READ
	WCCompareSwap WCOpcode = abi.IB_UVERBS_WC_COMP_SWAP
	WCFetchAdd    WCOpcode = abi.IB_UVERBS_WC_FETCH_ADD
	WCBindMW      WCOpcode = abi.IB_UVERBS_WC_BIND_MW
	WCLocalInv    WCOpcode = abi.IB_UVERBS_WC_LOCAL_INV
	WCFlush       WCOpcode = abi.IB_UVERBS_WC_FLUSH
	WCAtomicWrite WCOpcode = abi.IB_UVERBS_WC_ATOMIC_WRITE
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

// WCFlags say which fields of a [WC] are meaningful.
type WCFlags uint32

const (
	WCGRH     WCFlags = 1 << 0 // a GRH is in the first 40 bytes of the buffer
	WCWithImm WCFlags = 1 << 1 // see [WC.Imm]
	WCWithInv WCFlags = 1 << 3 // see [WC.InvalidatedRKey]
)

// WC is a work completion. Unless Status is [WCSuccess] only ID, Status,
// VendorErr and QPNum are meaningful. Its layout is the kernel's struct
// ib_uverbs_wc, so that a driver can copy it as it is.
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
}

// Imm is the immediate in host byte order; meaningful if Flags has
// [WCWithImm].
func (w *WC) Imm() uint32 { return binary.BigEndian.Uint32(w.ex[:]) }

// InvalidatedRKey is the key that a SEND_WITH_INV took away; meaningful if
// Flags has [WCWithInv].
func (w *WC) InvalidatedRKey() uint32 { return binary.NativeEndian.Uint32(w.ex[:]) }

// Err is nil for a successful completion, else an error that wraps Status.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{ID: w.ID, QPNum: w.QPNum, Status: w.Status, VendorErr: w.VendorErr}
}

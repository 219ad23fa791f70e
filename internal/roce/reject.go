package roce

import "fmt"

// RejectReason is why a REJ rejects a connection.
type RejectReason uint16

// The reasons have the names of enum ib_cm_rej_reason of the kernel.
const (
	RejNoQP                   RejectReason = 1
	RejNoEEC                  RejectReason = 2
	RejNoResources            RejectReason = 3
	RejTimeout                RejectReason = 4
	RejUnsupported            RejectReason = 5
	RejInvalidCommID          RejectReason = 6
	RejInvalidCommInstance    RejectReason = 7
	RejInvalidServiceID       RejectReason = 8
	RejInvalidTransportType   RejectReason = 9
	RejStaleConn              RejectReason = 10
	RejRDCNotExist            RejectReason = 11
	RejInvalidGID             RejectReason = 12
	RejInvalidLID             RejectReason = 13
	RejInvalidSL              RejectReason = 14
	RejInvalidTrafficClass    RejectReason = 15
	RejInvalidHopLimit        RejectReason = 16
	RejInvalidPacketRate      RejectReason = 17
	RejInvalidAltGID          RejectReason = 18
	RejInvalidAltLID          RejectReason = 19
	RejInvalidAltSL           RejectReason = 20
	RejInvalidAltTrafficClass RejectReason = 21
	RejInvalidAltHopLimit     RejectReason = 22
	RejInvalidAltPacketRate   RejectReason = 23
	RejPortCMRedirect         RejectReason = 24
	RejPortRedirect           RejectReason = 25
	RejInvalidMTU             RejectReason = 26
	RejInsufficientResponder  RejectReason = 27
	RejConsumerDefined        RejectReason = 28
	RejInvalidRNRRetry        RejectReason = 29
	RejDuplicateLocalCommID   RejectReason = 30
	RejInvalidClassVersion    RejectReason = 31
	RejInvalidFlowLabel       RejectReason = 32
	RejInvalidAltFlowLabel    RejectReason = 33
	RejVendorOption           RejectReason = 35
)

var rejectNames = [...]string{
	RejNoQP:                   "no QP available",
	RejNoEEC:                  "no EE context available",
	RejNoResources:            "no resources available",
	RejTimeout:                "timeout",
	RejUnsupported:            "unsupported request",
	RejInvalidCommID:          "invalid communication ID",
	RejInvalidCommInstance:    "invalid communication instance",
	RejInvalidServiceID:       "invalid service ID",
	RejInvalidTransportType:   "invalid transport service type",
	RejStaleConn:              "stale connection",
	RejRDCNotExist:            "RD channel does not exist",
	RejInvalidGID:             "invalid primary GID",
	RejInvalidLID:             "invalid primary LID",
	RejInvalidSL:              "invalid primary SL",
	RejInvalidTrafficClass:    "invalid primary traffic class",
	RejInvalidHopLimit:        "invalid primary hop limit",
	RejInvalidPacketRate:      "invalid primary packet rate",
	RejInvalidAltGID:          "invalid alternate GID",
	RejInvalidAltLID:          "invalid alternate LID",
	RejInvalidAltSL:           "invalid alternate SL",
	RejInvalidAltTrafficClass: "invalid alternate traffic class",
	RejInvalidAltHopLimit:     "invalid alternate hop limit",
	RejInvalidAltPacketRate:   "invalid alternate packet rate",
	RejPortCMRedirect:         "communication manager of another port",
	RejPortRedirect:           "another port",
	RejInvalidMTU:             "invalid path MTU",
	RejInsufficientResponder:  "insufficient responder resources",
	RejConsumerDefined:        "rejected by the application",
	RejInvalidRNRRetry:        "invalid RNR retry count",
	RejDuplicateLocalCommID:   "duplicate local communication ID",
	RejInvalidClassVersion:    "invalid class version",
	RejInvalidFlowLabel:       "invalid primary flow label",
	RejInvalidAltFlowLabel:    "invalid alternate flow label",
	RejVendorOption:           "vendor option not supported",
}

func (r RejectReason) String() string {
	if int(r) < len(rejectNames) && rejectNames[r] != "" {
		return rejectNames[r]
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// SIDRStatus is the result of a SIDRREP.
type SIDRStatus uint8

const (
	SIDRSuccess            SIDRStatus = 0
	SIDRUnsupported        SIDRStatus = 1 // the service ID is not supported
	SIDRReject             SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrNames = [...]string{"success", "service ID not supported", "rejected", "no QP available", "redirect", "version not supported"}

func (s SIDRStatus) String() string {
	if int(s) < len(sidrNames) {
		return sidrNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

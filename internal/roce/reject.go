package roce

// RejectReason is why a REJ rejects a connection.
type RejectReason uint16

// The reasons that devices give or look at, by the names of enum ib_cm_rej_reason of the kernel. Others
// are passed on as they come.
const (
	RejNoQP             RejectReason = 1
	RejTimeout          RejectReason = 4
	RejInvalidServiceID RejectReason = 8
	RejStaleConn        RejectReason = 10
	RejInvalidGID       RejectReason = 12
	RejInvalidAltGID    RejectReason = 18
	RejInvalidMTU       RejectReason = 26
	RejConsumerDefined  RejectReason = 28
	RejVendorOption     RejectReason = 35
)

// SIDRStatus is the result of a SIDRREP.
type SIDRStatus uint8

const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // the service ID is not supported
	SIDRReject      SIDRStatus = 2
)

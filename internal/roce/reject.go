package roce

// RejectReason is why a REJ rejects a connection.
type RejectReason uint16

// The reasons that devices give or look at (IBA, 12.6.7.2), by the names of enum ib_cm_rej_reason
// of the kernel. Others are passed on as they come.
const (
	RejNoQP             RejectReason = 1
	RejTimeout          RejectReason = 4  // the sender gives up: no answer came
	RejInvalidServiceID RejectReason = 8  // nobody listens: TCP's RST
	RejStaleConn        RejectReason = 10 // a connection of this QP is known that the peer has forgotten, or not ended yet
	RejInvalidGID       RejectReason = 12
	RejInvalidAltGID    RejectReason = 18
	RejInvalidMTU       RejectReason = 26
	RejConsumerDefined  RejectReason = 28 // the program has refused
	RejVendorOption     RejectReason = 35 // of enhanced connection establishment
)

// SIDRStatus is the result of a SIDRREP.
type SIDRStatus uint8

const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // the service ID is not supported
	SIDRReject      SIDRStatus = 2
)

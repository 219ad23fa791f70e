package ibcm

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// EventType is the type of an [Event] (enum ib_cm_event_type).
type EventType uint8

const (
	RequestReceived     EventType = iota // a REQ, for the handler of a listener
	RequestFailed                        // no answer to REQ
	ReplyReceived                        // a REP
	ReplyFailed                          // no answer to REP
	ReadyToUse                           // an RTU, or [ID.CommEstablished]
	Rejected                             // a REJ
	MRAReceived                          // an MRA
	DisconnectRequested                  // a DREQ
	Disconnected                         // a DREP
	DisconnectFailed                     // no answer to DREQ
	TimewaitExit                         // the connection's last packets have left the network
	ResolveRequested                     // a SIDR_REQ, for the handler of a listener
	Resolved                             // a SIDR_REP
	ResolveFailed                        // no answer to SIDR_REQ
)

// Event is an event of an [ID].
type Event struct {
	Type EventType
	// PrivateData is the whole field of the message, with the padding.
	PrivateData []byte
	// Refused is set in RequestFailed and ResolveFailed if the host has nothing that receives
	// requests.
	Refused bool

	Request    *ReceivedRequest    // of RequestReceived
	Reply      *ReceivedReply      // of ReplyReceived
	Rejection  *Rejection          // of Rejected
	Resolution *ReceivedResolution // of ResolveRequested
	Answer     *ReceivedAnswer     // of Resolved
}

// ReceivedRequest contains the parameters of a REQ, from the receiver's point of view:
// ResponderResources are what the peer would start, which is InitiatorDepth in its REQ
// (cm_format_req_event).
type ReceivedRequest struct {
	Path                      Path
	ServiceID                 uint64
	QPType                    verbs.QPType // 0 if it is neither RC nor UC
	QPNum                     uint32       // of the peer
	ResponderResources        uint8
	InitiatorDepth            uint8
	FlowControl, SRQ          bool
	RetryCount, RNRRetryCount uint8
	ECE                       ECE
}

// ReceivedReply contains the parameters of a REP, from the receiver's point of view.
type ReceivedReply struct {
	QPNum              uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl, SRQ   bool
	RNRRetryCount      uint8
	ECE                ECE
}

// Rejection contains the parameters of a REJ.
type Rejection struct {
	Reason roce.RejectReason
	Info   []byte // additional rejection information (ARI)
}

// ReceivedResolution contains the parameters of a SIDR_REQ.
type ReceivedResolution struct{ ServiceID uint64 }

// ReceivedAnswer contains the parameters of a SIDR_REP.
type ReceivedAnswer struct {
	Status roce.SIDRStatus
	QPNum  uint32
	QKey   uint32
}

// ECE is the offer of enhanced connection establishment (struct rdma_ucm_ece): options of one
// vendor's devices, which others leave at zero.
type ECE struct {
	VendorID uint32 // 24 bits
	AttrMod  uint32
}

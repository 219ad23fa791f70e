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

// Event is an event of an [ID]. Messages are as the peer sent them: its ResponderResources are what
// this side may start, its InitiatorDepth is what this side has to serve.
type Event struct {
	Type EventType
	// PrivateData is the whole field of the message, with the padding.
	PrivateData []byte
	// Refused is set in RequestFailed and ResolveFailed if the host has nothing that receives
	// requests.
	Refused bool

	Request    *roce.REQ     // of RequestReceived
	Path       *Path         // of RequestReceived, from this side to the peer
	QPType     verbs.QPType  // of RequestReceived; 0 if it is neither RC nor UC
	Reply      *roce.REP     // of ReplyReceived
	Rejection  *roce.REJ     // of Rejected
	Resolution *roce.SIDRREQ // of ResolveRequested
	Answer     *roce.SIDRREP // of Resolved
}

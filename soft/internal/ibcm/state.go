package ibcm

// State is the state of an [ID] (enum ib_cm_state; IBA, 12.9.7). The package documentation has the
// transitions.
type State uint8

const (
	Idle State = iota
	RequestSent
	RequestRcvd
	MRARequestSent
	MRARequestRcvd
	ReplySent
	ReplyRcvd
	MRAReplySent
	MRAReplyRcvd
	Established
	DisconnectSent
	DisconnectRcvd
	Timewait
	ResolveSent
	ResolveRcvd
)

var stateNames = [...]string{
	"idle", "REQ sent", "REQ received", "MRA for REQ sent", "MRA for REQ received",
	"REP sent", "REP received", "MRA for REP sent", "MRA for REP received", "established",
	"DREQ sent", "DREQ received", "timewait", "SIDR_REQ sent", "SIDR_REQ received",
}

func (s State) String() string { return stateNames[s] }

package roce

// The sizes of the private data in each message of the communication manager, and of the additional
// information in REJ and SIDR_REP. A datagram has 256 bytes, so they are what the other fields
// leave. The wire has no length for private data: decoded messages have all bytes of the field.
const (
	REQPrivateData     = 92
	MRAPrivateData     = 222
	REJPrivateData     = 148
	REPPrivateData     = 196
	RTUPrivateData     = 224
	DREQPrivateData    = 220
	DREPPrivateData    = 224
	SIDRREQPrivateData = 216
	SIDRREPPrivateData = 136

	REJInfo     = 72
	SIDRREPInfo = 72
)

// CMTransport is the transport service that a REQ asks for.
type CMTransport uint8

const (
	CMTransportRC CMTransport = 0
	CMTransportUC CMTransport = 1
	// 2 is RD. 3 is an extended transport, see REQ.ExtendedTransport, of which 1 is XRC.
)

// Answered is the message that an MRA or a REJ answers.
type Answered uint8

const (
	AnswersREQ   Answered = 0
	AnswersREP   Answered = 1
	AnswersOther Answered = 2 // MRA: LAP
)

// REQ asks for a connection. It has the fields of the standard's table (IBA, 12.6.5, table 106):
// all that the peer needs for its QP: the number and first PSN of this side's, the path, what the
// transport may keep open, and how long to try.
type REQ struct {
	LocalCommID             uint32
	VendorID                uint32 // 24 bits; ECE
	ECEOptions              uint32 // in the header, as attribute modifier
	ServiceID               ServiceID
	LocalCAGUID             uint64
	LocalQKey               uint32
	LocalQPN                uint32 // 24 bits
	ResponderResources      uint8  // READs and atomics of the peer that this side serves at a time
	LocalEECN               uint32 // 24 bits; of reliable datagrams, which Linux does not have
	InitiatorDepth          uint8  // READs and atomics that this side starts at a time
	RemoteEECN              uint32 // 24 bits
	RemoteCMResponseTimeout uint8  // 5 bits, see [Timeout]: within which the peer is to answer
	Transport               CMTransport
	FlowControl             bool   // end to end
	StartingPSN             uint32 // 24 bits
	LocalCMResponseTimeout  uint8  // 5 bits, see [Timeout]: within which this side answers, so the peer repeats after it
	RetryCount              uint8  // 3 bits; that the peer's QP is to use, as RNRRetryCount
	PKey                    uint16
	PathMTU                 uint8 // 4 bits: enum ib_mtu
	RDCExists               bool
	RNRRetryCount           uint8 // 3 bits
	MaxCMRetries            uint8 // 4 bits
	SRQ                     bool
	ExtendedTransport       uint8 // 3 bits
	Primary, Alternate      CMPath
	SAPSupported            bool   // "suggest alternate path"
	PrivateData             []byte // REQPrivateData at most
}

// CMPath is a path in a REQ.
type CMPath struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID [16]byte
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits: enum ib_rate
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	LocalACKTimeout     uint8 // 5 bits, see [Timeout]: twice the packet lifetime and the CA's delay (IBA, 12.7.34)
}

// MRA acknowledges a message whose answer takes longer, so that its sender waits instead of
// repeating it until it gives up (table 107).
type MRA struct {
	LocalCommID    uint32
	RemoteCommID   uint32
	Message        Answered // 2 bits
	ServiceTimeout uint8    // 5 bits, see [Timeout]
	PrivateData    []byte
}

// REJ rejects a connection, with a reason (IBA, 12.6.7.2) that may have details: the MTU or the GID
// that would do.
type REJ struct {
	LocalCommID  uint32
	RemoteCommID uint32
	Message      Answered // 2 bits
	Reason       RejectReason
	Info         []byte // additional information, REJInfo bytes at most
	PrivateData  []byte
}

// REP accepts a connection (IBA, 12.6.8). From here on both sides know the other's QP.
type REP struct {
	LocalCommID        uint32
	RemoteCommID       uint32
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	VendorID           uint32 // 24 bits; ECE
	ECEOptions         uint32 // in the header, as attribute modifier
	LocalEECN          uint32 // 24 bits
	StartingPSN        uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	TargetACKDelay     uint8 // 5 bits, see [Timeout]
	FailoverAccepted   uint8 // 2 bits
	FlowControl        bool  // end to end
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
	LocalCAGUID        uint64
	PrivateData        []byte
}

// RTU completes the establishment of a connection: the peer may send. It is not answered. If it is
// lost, the first packet of the QP does as well, or the repeated REP fetches another.
type RTU struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  []byte
}

// DREQ asks to disconnect (IBA, 12.6.10 and 12.10.8). The QP number guards against one that is
// late, as communication IDs are used again.
type DREQ struct {
	LocalCommID  uint32
	RemoteCommID uint32
	RemoteQPN    uint32 // 24 bits
	PrivateData  []byte
}

// DREP acknowledges a DREQ (IBA, 12.6.11).
type DREP struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  []byte
}

// SIDRREQ asks for the datagram QP of a service (table 119). There is no connection: the answer has
// the number and the Q_Key to send to, and that is all.
type SIDRREQ struct {
	RequestID   uint32
	PKey        uint16
	ServiceID   ServiceID
	PrivateData []byte
}

// SIDRREP answers a SIDRREQ.
type SIDRREP struct {
	RequestID   uint32
	Status      SIDRStatus
	QPN         uint32 // 24 bits
	VendorID    uint32 // 24 bits; ECE
	ECEOptions  uint32 // in the header, as attribute modifier
	ServiceID   ServiceID
	QKey        uint32
	Info        []byte // additional information, SIDRREPInfo bytes at most
	PrivateData []byte
}

func (*REQ) Attr() CMAttr     { return AttrREQ }
func (*MRA) Attr() CMAttr     { return AttrMRA }
func (*REJ) Attr() CMAttr     { return AttrREJ }
func (*REP) Attr() CMAttr     { return AttrREP }
func (*RTU) Attr() CMAttr     { return AttrRTU }
func (*DREQ) Attr() CMAttr    { return AttrDREQ }
func (*DREP) Attr() CMAttr    { return AttrDREP }
func (*SIDRREQ) Attr() CMAttr { return AttrSIDRREQ }
func (*SIDRREP) Attr() CMAttr { return AttrSIDRREP }

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

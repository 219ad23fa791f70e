package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The sizes of management datagrams (MAD), which are the payload of UD packets to QP 1.
const (
	MADSize       = 256
	MADHeaderSize = 24
)

// The queue pair of the general services, its Q_Key, and the numbers in the header of the
// communication manager's datagrams. The Q_Key is known to all: its upper bit marks those that only
// privileged programs may send with. Class 7 is communication management (IBA, 13.4.4).
const (
	GSIQP   = 1
	GSIQKey = 0x80010000

	MADVersion     = 1
	CMClass        = 0x07
	CMClassVersion = 2
	MethodSend     = 0x03
)

// The errors of DecodeCM and AppendCM.
var (
	ErrMADLength   = errors.New("management datagram does not have 256 bytes")
	ErrNotCM       = errors.New("management datagram is not of the communication manager")
	ErrMessage     = errors.New("message of the communication manager is not supported")
	ErrPrivateData = errors.New("private data or additional information is too long")
)

// MADHeader is the header of a management datagram.
type MADHeader struct {
	BaseVersion   uint8
	Class         uint8
	ClassVersion  uint8
	Method        uint8
	Status        uint16
	ClassSpecific uint16
	TID           uint64 // transaction
	Attr          CMAttr
	_             uint16
	Modifier      uint32
}

// CMAttr is the attribute of a management datagram. The communication manager has one for each
// message (IBA, 16.7.3). Datagrams may be lost, so each is repeated until its answer comes, as
// TCP's SYN is:
//
//	REQ ──► ◄── REP, RTU ──►       a connection
//	    REJ answers any of them    it is refused
//	    MRA answers REQ and REP    the answer takes longer, do not repeat
//	DREQ ──► ◄── DREP              its end
//	SIDR_REQ ──► ◄── SIDR_REP      the QP of a service for datagrams
type CMAttr uint16

const (
	AttrREQ     CMAttr = 0x10 // request for a connection
	AttrMRA     CMAttr = 0x11 // message receipt acknowledgement
	AttrREJ     CMAttr = 0x12 // reject
	AttrREP     CMAttr = 0x13 // reply to a request
	AttrRTU     CMAttr = 0x14 // ready to use
	AttrDREQ    CMAttr = 0x15 // request to disconnect
	AttrDREP    CMAttr = 0x16 // reply to a request to disconnect
	AttrSIDRREQ CMAttr = 0x17 // service ID resolution request
	AttrSIDRREP CMAttr = 0x18 // service ID resolution reply
	AttrLAP     CMAttr = 0x19 // load alternate path; not supported
	AttrAPR     CMAttr = 0x1a // alternate path response; not supported
)

var attrNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

func (a CMAttr) String() string {
	if n := int(a) - int(AttrREQ); n >= 0 && n < len(attrNames) {
		return attrNames[n]
	}
	return fmt.Sprintf("attribute %#04x", uint16(a))
}

// Append appends the header to dst.
func (h *MADHeader) Append(dst []byte) []byte {
	dst, _ = binary.Append(dst, binary.BigEndian, h) // no error: all fields have fixed sizes
	return dst
}

// Decode decodes the header of the management datagram b.
func (h *MADHeader) Decode(b []byte) error {
	if len(b) != MADSize {
		return ErrMADLength
	}
	binary.Decode(b, binary.BigEndian, h)
	return nil
}

// QuotedTID returns the transaction ID of a datagram of which b is the beginning.
func QuotedTID(b []byte) (tid uint64, ok bool) {
	if len(b) < 16 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[8:]), true
}

// A CMMessage is a message of the communication manager: a pointer to [REQ], [MRA], [REJ],
// [REP], [RTU], [DREQ], [DREP], [SIDRREQ] or [SIDRREP].
type CMMessage interface {
	// Attr returns the attribute of the message.
	Attr() CMAttr

	// fields reads or writes the message, with its part of the header.
	fields(*cmWire)
}

var messages = map[CMAttr]func() CMMessage{
	AttrREQ:     func() CMMessage { return new(REQ) },
	AttrMRA:     func() CMMessage { return new(MRA) },
	AttrREJ:     func() CMMessage { return new(REJ) },
	AttrREP:     func() CMMessage { return new(REP) },
	AttrRTU:     func() CMMessage { return new(RTU) },
	AttrDREQ:    func() CMMessage { return new(DREQ) },
	AttrDREP:    func() CMMessage { return new(DREP) },
	AttrSIDRREQ: func() CMMessage { return new(SIDRREQ) },
	AttrSIDRREP: func() CMMessage { return new(SIDRREP) },
}

// AppendCM appends the management datagram of a message to dst. Bits of a field above its
// size on the wire are not encoded. AppendCM fails with ErrPrivateData.
func AppendCM(dst []byte, tid uint64, m CMMessage) ([]byte, error) {
	var mad [MADSize]byte
	h := MADHeader{
		BaseVersion: MADVersion, Class: CMClass, ClassVersion: CMClassVersion, Method: MethodSend, TID: tid, Attr: m.Attr(),
	}
	h.Append(mad[:0])
	w := cmWire{mad: &mad, write: true}
	if m.fields(&w); w.err != nil {
		return dst, w.err
	}
	return append(dst, mad[:]...), nil
}

// DecodeCM decodes a management datagram of the communication manager. The message shares no memory
// with b. The header is valid if the error is neither nil nor ErrMADLength: ErrNotCM reports
// another class, version or method, ErrMessage another attribute.
func DecodeCM(b []byte) (h MADHeader, m CMMessage, err error) {
	if err := h.Decode(b); err != nil {
		return h, nil, err
	}
	if h.BaseVersion != MADVersion || h.Class != CMClass || h.ClassVersion != CMClassVersion || h.Method != MethodSend {
		return h, nil, ErrNotCM
	}
	empty, ok := messages[h.Attr]
	if !ok {
		return h, nil, ErrMessage
	}
	m = empty()
	m.fields(&cmWire{mad: (*[MADSize]byte)(b)})
	return h, m, nil
}

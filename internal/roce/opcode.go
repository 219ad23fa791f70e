package roce

import "fmt"

// Opcode is the operation of a packet: the transport in the upper 3 bits, the operation in the
// lower 5. It also tells the place of the packet in its message, FIRST, MIDDLE, LAST or ONLY, and
// which headers follow the BTH: there is no other length or type of them in the packet.
type Opcode uint8

// Transport is the part of an Opcode that names the transport service.
type Transport uint8

const (
	RC Transport = 0x00 // reliable connection
	UC Transport = 0x20 // unreliable connection
	UD Transport = 0x60 // unreliable datagram
)

// The opcodes of the reliable connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0a
	RCWriteOnlyImm       Opcode = 0x0b
	RCReadRequest        Opcode = 0x0c
	RCReadResponseFirst  Opcode = 0x0d
	RCReadResponseMiddle Opcode = 0x0e
	RCReadResponseLast   Opcode = 0x0f
	RCReadResponseOnly   Opcode = 0x10 // also acknowledges FLUSH and ATOMIC WRITE, without payload
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCompareSwap        Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInvalidate Opcode = 0x16
	RCSendOnlyInvalidate Opcode = 0x17
	RCFlush              Opcode = 0x1c
	RCAtomicWrite        Opcode = 0x1d
)

// The opcodes of the unreliable connection, from the first to the last, are those of the reliable
// connection's SENDs and WRITEs in Transport UC. The unreliable datagram has two.
const (
	UCSendFirst    = Opcode(UC) | RCSendFirst
	UCWriteOnlyImm = Opcode(UC) | RCWriteOnlyImm
	UDSendOnly     = Opcode(UD) | RCSendOnly
	UDSendOnlyImm  = Opcode(UD) | RCSendOnlyImm
)

// CNP is the congestion notification packet of RoCEv2 (Annex A17.9.3): a BTH and 16 reserved bytes,
// which Packet has as payload. A receiver of packets that the network has marked (ECN) sends it to
// their sender. rxe neither sends nor accepts it.
const CNP Opcode = 0x81

// Flags describe an Opcode: the headers after the BTH, and what the packet means.
type Flags uint32

const (
	HasDETH Flags = 1 << iota
	HasFETH
	HasRETH
	HasAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	HasPayload // the packet may have payload

	IsRequest  // requester to responder
	IsResponse // responder to requester
	IsSend
	IsWrite       // RDMA WRITE
	IsRead        // RDMA READ request
	IsAtomic      // COMPARE SWAP and FETCH ADD
	IsFlush       // FLUSH
	IsAtomicWrite // ATOMIC WRITE

	Starts       // the first packet of a message, or its only one
	Middle       // neither the first nor the last packet
	Ends         // the last packet of a message, or its only one
	TakesReceive // takes a receive request: starts of sends, ends of writes with immediate data
	Completes    // completes a receive request
)

type opcodeInfo struct {
	name  string
	flags Flags
	size  uint8 // of the headers; 0: the opcode is not known
}

const (
	first = Starts
	last  = Ends
	only  = Starts | Ends

	send  = IsRequest | IsSend | HasPayload
	write = IsRequest | IsWrite | HasPayload
	reply = IsResponse | HasPayload
)

// The sizes of headers.
const (
	BTHSize          = 12
	RETHSize         = 16
	AETHSize         = 4
	AtomicETHSize    = 28
	AtomicAckETHSize = 8
	DETHSize         = 8
	ImmDtSize        = 4
	IETHSize         = 4
	FETHSize         = 4
	ICRCSize         = 4
	// MaxHeaderSize is the largest size of the headers of a packet.
	MaxHeaderSize = BTHSize + AtomicETHSize
)

var opcodes = [256]opcodeInfo{
	RCSendFirst:          {"SEND_FIRST", send | first | TakesReceive, BTHSize},
	RCSendMiddle:         {"SEND_MIDDLE", send | Middle, BTHSize},
	RCSendLast:           {"SEND_LAST", send | last | Completes, BTHSize},
	RCSendLastImm:        {"SEND_LAST_IMM", send | last | Completes | HasImmDt, BTHSize + ImmDtSize},
	RCSendOnly:           {"SEND_ONLY", send | only | TakesReceive | Completes, BTHSize},
	RCSendOnlyImm:        {"SEND_ONLY_IMM", send | only | TakesReceive | Completes | HasImmDt, BTHSize + ImmDtSize},
	RCWriteFirst:         {"WRITE_FIRST", write | first | HasRETH, BTHSize + RETHSize},
	RCWriteMiddle:        {"WRITE_MIDDLE", write | Middle, BTHSize},
	RCWriteLast:          {"WRITE_LAST", write | last, BTHSize},
	RCWriteLastImm:       {"WRITE_LAST_IMM", write | last | TakesReceive | Completes | HasImmDt, BTHSize + ImmDtSize},
	RCWriteOnly:          {"WRITE_ONLY", write | only | HasRETH, BTHSize + RETHSize},
	RCWriteOnlyImm:       {"WRITE_ONLY_IMM", write | only | TakesReceive | Completes | HasRETH | HasImmDt, BTHSize + RETHSize + ImmDtSize},
	RCReadRequest:        {"READ_REQUEST", IsRequest | IsRead | only | HasRETH, BTHSize + RETHSize},
	RCReadResponseFirst:  {"READ_RESPONSE_FIRST", reply | first | HasAETH, BTHSize + AETHSize},
	RCReadResponseMiddle: {"READ_RESPONSE_MIDDLE", reply | Middle, BTHSize},
	RCReadResponseLast:   {"READ_RESPONSE_LAST", reply | last | HasAETH, BTHSize + AETHSize},
	RCReadResponseOnly:   {"READ_RESPONSE_ONLY", reply | only | HasAETH, BTHSize + AETHSize},
	RCAcknowledge:        {"ACKNOWLEDGE", IsResponse | only | HasAETH, BTHSize + AETHSize},
	RCAtomicAcknowledge:  {"ATOMIC_ACKNOWLEDGE", IsResponse | only | HasAETH | HasAtomicAckETH, BTHSize + AETHSize + AtomicAckETHSize},
	RCCompareSwap:        {"COMPARE_SWAP", IsRequest | IsAtomic | only | HasAtomicETH, BTHSize + AtomicETHSize},
	RCFetchAdd:           {"FETCH_ADD", IsRequest | IsAtomic | only | HasAtomicETH, BTHSize + AtomicETHSize},
	RCSendLastInvalidate: {"SEND_LAST_INVALIDATE", send | last | Completes | HasIETH, BTHSize + IETHSize},
	RCSendOnlyInvalidate: {"SEND_ONLY_INVALIDATE", send | only | TakesReceive | Completes | HasIETH, BTHSize + IETHSize},
	RCFlush:              {"FLUSH", IsRequest | IsFlush | only | HasFETH | HasRETH, BTHSize + FETHSize + RETHSize},
	RCAtomicWrite:        {"ATOMIC_WRITE", IsRequest | IsAtomicWrite | only | HasPayload | HasRETH, BTHSize + RETHSize},

	UDSendOnly:    {"SEND_ONLY", send | only | TakesReceive | Completes | HasDETH, BTHSize + DETHSize},
	UDSendOnlyImm: {"SEND_ONLY_IMM", send | only | TakesReceive | Completes | HasDETH | HasImmDt, BTHSize + DETHSize + ImmDtSize},

	CNP: {"CNP", HasPayload, BTHSize},
}

func init() {
	for o := UCSendFirst; o <= UCWriteOnlyImm; o++ { // with the headers of RC's
		opcodes[o] = opcodes[o-UCSendFirst]
	}
}

// Known reports whether the package knows the opcode: of RC, UC or UD, or CNP.
func (o Opcode) Known() bool { return opcodes[o].size != 0 }

// Transport returns the transport service of the opcode.
func (o Opcode) Transport() Transport { return Transport(o & 0xe0) }

// Flags returns the flags of the opcode. They are 0 if it is not known.
func (o Opcode) Flags() Flags { return opcodes[o].flags }

// Has reports whether the opcode has at least one of the flags.
func (o Opcode) Has(f Flags) bool { return opcodes[o].flags&f != 0 }

// HeaderLen returns the size of the headers, with the BTH. It is 0 if the opcode is not known.
func (o Opcode) HeaderLen() int { return int(opcodes[o].size) }

// PayloadFits reports whether a packet with this opcode may have n bytes of payload on a path with
// this MTU (IBA, 9.7.4.1.6; check_length): first and middle packets are full, last packets are not
// empty, and an ATOMIC WRITE has 8 bytes. So both sides count the same packets for a message, of
// whose length a SEND tells nothing.
func (o Opcode) PayloadFits(n, mtu int) bool {
	switch f := opcodes[o].flags; {
	case f&HasPayload == 0:
		return n == 0
	case o == CNP:
		return n == cnpSize
	case f&IsAtomicWrite != 0:
		return n == 8
	case f&only == only:
		return n <= mtu
	case f&Ends != 0:
		return 0 < n && n <= mtu
	default:
		return n == mtu
	}
}

const cnpSize = 16

// String returns the transport and the operation: RC WRITE_FIRST.
func (o Opcode) String() string {
	switch {
	case !o.Known():
		return fmt.Sprintf("opcode %#02x", uint8(o))
	case o == CNP:
		return "CNP"
	}
	return o.Transport().String() + " " + opcodes[o].name
}

func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("transport %#02x", uint8(t))
}

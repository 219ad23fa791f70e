package rsock

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is returned when the peer breaks the protocol or speaks another one. The
// connection is ended.
var ErrProtocol = errors.New("protocol violation by the peer (rsockets)")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// The wire format of C's rsockets, version 1 (librdmacm's rsocket.c): both sides send struct
// rs_conn_data once, as private data of the connection manager; then RDMA WRITEs to the peer's
// ring, and messages of 32 bits that announce them. The oddities below are the format's.
const (
	version     = 1
	helloSize   = 40
	messageSize = 4
	sgeSize     = 16
	sgeCount    = 2 // descriptors that this side has room for

	flagNet   = 1 << 0 // the sender's host is big-endian
	flagIOMap = 1 << 1 // the private data has the size of an I/O map: ours is 0
)

// message is the 32 bits that announce data, credits, SHUTDOWN and DISCONNECT: an operation in the
// upper 3 bits and a number (rs_msg_set). A WRITE alone is not seen by the peer's program, so each
// needs one, and each takes a receive there.
type message uint32

const (
	opShift          = 29
	dataMask         = 1<<opShift - 1
	opData   message = 0 << opShift // number of bytes that were written
	opSGL    message = 4 << opShift // credits up to this number, modulo 2^16, and perhaps a descriptor
	opCtrl   message = 7 << opShift

	msgDisconnect = opCtrl
	msgKeepAlive  = opCtrl | 1
	msgShutdown   = opCtrl | 2
)

func (m message) op() message { return m &^ dataMask }
func (m message) data() int   { return int(m & dataMask) }

// sge describes a piece of memory of a peer.
type sge struct {
	addr   uint64
	key    uint32
	length uint32
}

func (s sge) put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, s.addr)
	order.PutUint32(b[8:], s.key)
	order.PutUint32(b[12:], s.length)
}

func getSGE(b []byte, order binary.ByteOrder) sge {
	return sge{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:])}
}

// hello is the private data that the two sides exchange while they connect: in the request and in
// its acceptance, so that each can write to the other's memory from the first message on. Its
// numbers are big-endian. It tells the byte order of its sender, which descriptors written to the
// sender's table later have, and messages from it on iWARP.
type hello struct {
	bigEndian bool
	credits   uint16
	sgl       sge // the descriptors; length counts them
	buffer    sge // the first half of the receive ring
}

// bigEndianHost is true if this machine is big-endian.
var bigEndianHost = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

func (h *hello) order() binary.ByteOrder {
	if h.bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (h *hello) put(b []byte) {
	clear(b[:helloSize])
	b[0] = version
	b[1] = flagIOMap
	if h.bigEndian {
		b[1] |= flagNet
	}
	binary.BigEndian.PutUint16(b[2:], h.credits)
	h.sgl.put(b[8:], binary.BigEndian)
	h.buffer.put(b[24:], binary.BigEndian)
}

// parseHello reads private data, which RoCE pads with zeros.
func parseHello(b []byte) (hello, error) {
	if len(b) < helloSize {
		return hello{}, protocolError("%d bytes of private data", len(b))
	}
	if b[0] != version {
		return hello{}, protocolError("version %d", b[0])
	}
	h := hello{
		bigEndian: b[1]&flagNet != 0,
		credits:   binary.BigEndian.Uint16(b[2:]),
		sgl:       getSGE(b[8:], binary.BigEndian),
		buffer:    getSGE(b[24:], binary.BigEndian),
	}
	// The device checks addresses against the peer's key. It does not see an overflow of the sums
	// here.
	last := func(s sge, size uint64) bool { return s.addr+(uint64(s.length)*size-1) >= s.addr }
	switch {
	case h.credits == 0:
		return h, protocolError("no credits")
	case h.sgl.length < 2 || !last(h.sgl, sgeSize):
		return h, protocolError("%d descriptors at %#x", h.sgl.length, h.sgl.addr)
	case h.buffer.length == 0 || !last(h.buffer, 2):
		return h, protocolError("a buffer of %d bytes at %#x", h.buffer.length, h.buffer.addr)
	}
	return h, nil
}

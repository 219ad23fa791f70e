package rmsg

import (
	"encoding/binary"
	"fmt"
)

// The protocol's version, and the oldest that this side speaks.
const (
	version    = 3
	minVersion = 3
)

// magic is the start of the private data of both sides.
const magic = "VMSG"

// helloSize is the size of the private data without the program's.
const helloSize = 20

// hello is the private data that the sides exchange when they connect.
type hello struct {
	version, min uint8
	credits      uint32 // messages that the peer may send initially
	eager        uint32 // bytes of the largest message that may be sent at once
	max          uint32 // bytes of the largest message that it accepts
	private      []byte // the program's private data
}

func (h *hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, h.version, h.min, uint8(len(h.private)), 0)
	b = binary.BigEndian.AppendUint32(b, h.credits)
	b = binary.BigEndian.AppendUint32(b, h.eager)
	b = binary.BigEndian.AppendUint32(b, h.max)
	return append(b, h.private...)
}

// parseHello parses a peer's private data, which RoCE pads with zeros.
func parseHello(b []byte) (hello, error) {
	if len(b) < helloSize || string(b[:4]) != magic {
		return hello{}, protocol("it does not speak rmsg's protocol")
	}
	h := hello{version: b[4], min: b[5]}
	if h.version < minVersion || h.min > version || h.min > h.version {
		return h, fmt.Errorf("%w: the peer's are %d to %d, this side's %d to %d", ErrVersion, h.min, h.version, minVersion, version)
	}
	h.credits = binary.BigEndian.Uint32(b[8:])
	h.eager = binary.BigEndian.Uint32(b[12:])
	h.max = binary.BigEndian.Uint32(b[16:])
	n := int(b[6])
	switch {
	case h.credits < 1 || h.credits > maxCount:
		return h, protocol("%d credits", h.credits)
	case h.eager < minEager || h.eager > maxEager:
		return h, protocol("eager messages of %d bytes", h.eager)
	case h.max > maxSize:
		return h, protocol("messages of %d bytes", h.max)
	case n > len(b)-helloSize:
		return h, protocol("private data of %d bytes in %d", n, len(b)-helloSize)
	}
	h.private = b[helloSize : helloSize+n]
	return h, nil
}

type kind uint8

const (
	kindHello    kind = iota + 1 // the first frame, of both sides
	kindMessage                  // a message follows
	kindAnnounce                 // a message can be read
	kindAck                      // only the fields that all frames have
	kindBye                      // no message will follow
)

// flagByeAnswer is the flag of a bye that is sent after the peer's has arrived.
const flagByeAnswer = 1

const (
	headerSize   = 24
	announceSize = headerSize + 16
)

// frame is the content of one SEND, without the message.
type frame struct {
	kind  kind
	flags uint8
	// size is the size of the message in bytes, and seq its number, from 0.
	size, seq uint32
	// granted is the total number of messages that the peer may send, and read the
	// number of announced messages that have been read. Both wrap around.
	granted, read uint32
	// addr and rkey are the location of an announced message.
	addr uint64
	rkey uint32
}

// put writes the frame to the start of b and returns its length.
func (f *frame) put(b []byte) int {
	b[0], b[1], b[2], b[3] = byte(f.kind), f.flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], f.size)
	binary.BigEndian.PutUint32(b[8:], f.seq)
	binary.BigEndian.PutUint32(b[12:], f.granted)
	binary.BigEndian.PutUint32(b[16:], f.read)
	binary.BigEndian.PutUint32(b[20:], 0)
	if f.kind != kindAnnounce {
		return headerSize
	}
	binary.BigEndian.PutUint64(b[24:], f.addr)
	binary.BigEndian.PutUint32(b[32:], f.rkey)
	binary.BigEndian.PutUint32(b[36:], 0)
	return announceSize
}

// parseFrame parses the content of one SEND. It checks sizes against b, and no other values.
func parseFrame(b []byte) (f frame, err error) {
	if len(b) < headerSize {
		return f, protocol("frame of %d bytes", len(b))
	}
	f = frame{
		kind:    kind(b[0]),
		flags:   b[1],
		size:    binary.BigEndian.Uint32(b[4:]),
		seq:     binary.BigEndian.Uint32(b[8:]),
		granted: binary.BigEndian.Uint32(b[12:]),
		read:    binary.BigEndian.Uint32(b[16:]),
	}
	rest := uint32(len(b) - headerSize)
	switch f.kind {
	case kindMessage:
		if f.size != rest {
			return f, protocol("message of %d bytes in a frame of %d", f.size, len(b))
		}
	case kindAnnounce:
		if len(b) != announceSize {
			return f, protocol("announcement of %d bytes", len(b))
		}
		f.addr, f.rkey = binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint32(b[32:])
		if f.size == 0 || f.addr+uint64(f.size) < f.addr {
			return f, protocol("announcement of %d bytes at %#x", f.size, f.addr)
		}
	case kindHello, kindAck, kindBye:
		if rest != 0 || f.size != 0 {
			return f, protocol("frame of type %d has %d bytes", f.kind, len(b))
		}
	default:
		return f, protocol("frame of type %d", f.kind)
	}
	return f, nil
}

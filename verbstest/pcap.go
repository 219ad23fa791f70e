package verbstest

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// Blocks and options of the file format pcapng.
const (
	sectionHeader        = 0x0a0d0d0a
	interfaceDescription = 1
	enhancedPacket       = 6
	byteOrder            = 0x1a2b3c4d
	linkTypeRaw          = 101 // IPv4 and IPv6
	optionEnd            = 0
	optionComment        = 1
	optionTimeResolution = 9
)

// WritePcap writes the packets of the trace as a capture file in the format pcapng, which tshark
// and Wireshark read. Packets are as they were sent, also those that were dropped; what happened to
// them is their comment.
func (n *Network) WritePcap(w io.Writer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	le := binary.LittleEndian
	b := appendBlock(nil, sectionHeader, func(b []byte) []byte {
		b = le.AppendUint32(b, byteOrder)
		b = le.AppendUint32(b, 1) // version 1.0
		return le.AppendUint64(b, 1<<64-1)
	})
	b = appendBlock(b, interfaceDescription, func(b []byte) []byte {
		b = le.AppendUint32(b, linkTypeRaw)
		b = le.AppendUint32(b, 0)                            // snapshot length: no limit
		b = appendOption(b, optionTimeResolution, []byte{9}) // nanoseconds
		return appendOption(b, optionEnd, nil)
	})
	n.last(func(e *entry) {
		b = appendBlock(b, enhancedPacket, func(b []byte) []byte {
			at := uint64(n.begin.Add(e.sent).Sub(time.Unix(0, 0)))
			ip := roce.AppendIP(nil, e.src, e.dst, e.tos, e.data)
			b = le.AppendUint32(b, 0) // interface
			b = le.AppendUint32(b, uint32(at>>32))
			b = le.AppendUint32(b, uint32(at))
			b = le.AppendUint32(b, uint32(len(ip)))
			b = le.AppendUint32(b, uint32(len(ip)))
			b = pad(append(b, ip...), len(ip))
			if e.notes != "" {
				b = appendOption(b, optionComment, []byte(e.notes))
				b = appendOption(b, optionEnd, nil)
			}
			return b
		})
	})
	_, err := w.Write(b)
	return err
}

// appendBlock appends a block whose body appendBody appends.
func appendBlock(b []byte, kind uint32, appendBody func([]byte) []byte) []byte {
	begin := len(b)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = appendBody(append(b, 0, 0, 0, 0))
	size := uint32(len(b) - begin + 4)
	binary.LittleEndian.PutUint32(b[begin+4:], size)
	return binary.LittleEndian.AppendUint32(b, size)
}

func appendOption(b []byte, code uint16, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...), len(value))
}

// pad appends zeros after n bytes up to a multiple of 4.
func pad(b []byte, n int) []byte { return append(b, make([]byte, -n&3)...) }

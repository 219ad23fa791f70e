// Package roce encodes, decodes and checks what RoCEv2 devices send: the headers of packets,
// their invariant CRC, and the messages of the communication manager. It has no state.
//
// A packet is what a UDP datagram to port 4791 carries: from the base transport header
// (BTH) to the ICRC, both included. A packet is sent and received like this:
//
//	buf = p.AppendHeaders(buf[:0])       // p.Pad is PadLen(payload)
//	buf = append(buf, payload...)        // or gathered
//	buf = append(buf, roce.Padding(n)...)
//	buf = flow.AppendICRC(buf, id)
//
//	err := p.Decode(data)
//	_, ok := flow.VerifyUnknownID(data) // or flow.Verify(data, id)
//
// The numbers are from the InfiniBand Architecture Specification, volume 1, with its
// annexes on RoCEv2 and on memory placement (FLUSH and ATOMIC WRITE). Where the Linux driver
// rxe differs from it, this package does what rxe does, with a comment.
package roce

// Port is the UDP destination port of RoCEv2.
const Port = 4791

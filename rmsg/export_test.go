package rmsg

import "context"

// The names below are for tests that act as a peer.

const HeaderSize = headerSize

type Frame struct {
	Kind, Flags              uint8
	Size, Seq, Granted, Read uint32
	Addr                     uint64
	RKey                     uint32
}

// The kinds of frames.
const (
	Hello, Message, Announce, Ack, Bye = uint8(kindHello), uint8(kindMessage), uint8(kindAnnounce), uint8(kindAck), uint8(kindBye)
)

func (f Frame) Append(b []byte) []byte {
	var room [announceSize]byte
	inner := frame{kind(f.Kind), f.Flags, f.Size, f.Seq, f.Granted, f.Read, f.Addr, f.RKey}
	return append(b, room[:inner.put(room[:])]...)
}

// PrivateData returns the private data of a peer.
func PrivateData(version, oldest uint8, credits, eager, most uint32) []byte {
	h := hello{version: version, min: oldest, credits: credits, eager: eager, max: most}
	return h.append(nil)
}

// Loop returns the loop of the connection.
func (c *Conn) Loop() *Loop { return c.l }

// HeardBye reports whether the peer has said goodbye.
func (c *Conn) HeardBye() bool { return read(c, &c.bye).heard() }

// Wait waits until the connection is established, or has failed.
func (c *Conn) Wait(ctx context.Context) error { return c.waitEstablished(ctx) }

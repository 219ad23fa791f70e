package verbs

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// QPAddr is the address of a QP: what a peer must know to connect to it. Programs without
// a connection manager exchange their addresses once, see [QPAddr.Offer].
type QPAddr struct {
	QPNum uint32
	PSN   uint32 // of the first packet that the QP sends; 24 bits
	GID   GID
	LID   uint16 // InfiniBand only

	// Of the local side, not part of the text:
	Port     int
	GIDIndex int
}

// String returns the text that C's ibv_rc_pingpong exchanges: LID, QP number, PSN and GID
// in hexadecimal, 0000:000011:636ab2:00000000000000000000ffff0a090001.
func (a QPAddr) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%x", a.LID, a.QPNum, a.PSN, a.GID[:])
}

const qpAddrSize = len("LLLL:QQQQQQ:PPPPPP:") + 2*len(GID{})

// ParseQPAddr parses the text of String.
func ParseQPAddr(s string) (a QPAddr, err error) {
	bad := fmt.Errorf("parse QP address %q: not LID:QP:PSN:GID of 4, 6, 6 and 32 hexadecimal digits", s)
	parts := strings.Split(s, ":")
	if len(s) != qpAddrSize || len(parts) != 4 || len(parts[3]) != 2*len(a.GID) {
		return a, bad
	}
	var numbers [3]uint32
	for i, bits := range []int{16, 24, 24} {
		v, err := strconv.ParseUint(parts[i], 16, bits)
		if err != nil {
			return a, bad
		}
		numbers[i] = uint32(v)
	}
	if _, err := hex.Decode(a.GID[:], []byte(parts[3])); err != nil {
		return a, bad
	}
	a.LID, a.QPNum, a.PSN = uint16(numbers[0]), numbers[1], numbers[2]
	return a, nil
}

// PathFrom returns the path from a local QP to this one, for address handles and QPAttr.
func (a QPAddr) PathFrom(local QPAddr) AddressVector {
	return AddressVector{
		Global: a.GID != GID{}, DGID: a.GID, SGIDIndex: uint8(local.GIDIndex), HopLimit: 64,
		DLID: a.LID, Port: uint8(local.Port),
	}
}

// MarshalText implements encoding.TextMarshaler. It returns the text of String.
func (a QPAddr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with [ParseQPAddr].
func (a *QPAddr) UnmarshalText(text []byte) (err error) {
	*a, err = ParseQPAddr(string(text))
	return err
}

// Offer sends the address to a peer and receives the peer's address. The peer calls
// [QPAddr.Answer], or is the server of C's ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong.
// conn is a connection such as a [net.Conn], whose deadline bounds the call; the dialing side
// offers. When Offer returns, the peer is connected to a. Close conn after an error.
func (a QPAddr) Offer(conn io.ReadWriter) (peer QPAddr, err error) {
	if err = a.send(conn); err == nil {
		peer, err = receiveQPAddr(conn)
	}
	if err == nil {
		_, err = io.WriteString(conn, qpAddrDone)
	}
	if err != nil {
		return QPAddr{}, fmt.Errorf("exchange QP addresses: %w", err)
	}
	return peer, nil
}

// Answer is the counterpart of [QPAddr.Offer], and of the clients of C's programs. It receives the
// peer's address, calls connect, which may be nil, and sends this address. connect must move the QP
// to a state in which it receives, ready for the peer's first message; if connect fails, the peer
// gets no answer. Answer treats conn and errors like Offer.
func (a QPAddr) Answer(conn io.ReadWriter, connect func(peer QPAddr) error) (peer QPAddr, err error) {
	if peer, err = receiveQPAddr(conn); err == nil && connect != nil {
		if err := connect(peer); err != nil {
			return QPAddr{}, err
		}
	}
	if err == nil {
		err = a.send(conn)
	}
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, len(qpAddrDone)))
	}
	if err != nil {
		return QPAddr{}, fmt.Errorf("exchange QP addresses: %w", err)
	}
	return peer, nil
}

// qpAddrDone ends the exchange; the offering side sends it. C's strings end with a zero byte.
const qpAddrDone = "done\x00"

// send sends the address in one write: the C programs receive it in a single read.
func (a QPAddr) send(w io.Writer) error {
	if _, err := io.WriteString(w, a.String()+"\x00"); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func receiveQPAddr(r io.Reader) (QPAddr, error) {
	text := make([]byte, qpAddrSize+1)
	if _, err := io.ReadFull(r, text); err != nil {
		return QPAddr{}, fmt.Errorf("receive: %w", err)
	}
	return ParseQPAddr(strings.TrimSuffix(string(text), "\x00"))
}

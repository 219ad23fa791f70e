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

	ECE ECE // extensions that the QP offers; part of MarshalText, not of String

	// Of the local side, not part of the text:
	Port     int
	GIDIndex int
}

// ECE is an offer of a vendor's extensions to the peer, such as selective repetition of lost packets
// on ConnectX (enhanced connection establishment, ibv_query_ece(3)). Both sides use what both have.
type ECE struct {
	VendorID uint32 // the device's PCI vendor; an offer of another vendor's device is none
	Options  uint32 // bits that the vendor's firmware defines
}

// String returns the text that C's ibv_rc_pingpong exchanges: LID, QP number, PSN and GID
// in hexadecimal, 0000:000011:636ab2:00000000000000000000ffff0a090001.
func (a QPAddr) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%x", a.LID, a.QPNum, a.PSN, a.GID[:])
}

const qpAddrSize = len("LLLL:QQQQQQ:PPPPPP:") + 2*len(GID{})

// ParseQPAddr parses the texts of String and MarshalText.
func ParseQPAddr(s string) (QPAddr, error) {
	var a QPAddr
	var lid uint32
	fields := [...]struct {
		digits int
		number *uint32 // nil for the GID
	}{{4, &lid}, {6, &a.QPNum}, {6, &a.PSN}, {32, nil}, {6, &a.ECE.VendorID}, {8, &a.ECE.Options}}
	parts := strings.Split(s, ":")
	ok := len(parts) == 4 || len(parts) == len(fields)
	for i := 0; ok && i < len(parts); i++ {
		f, part := fields[i], parts[i]
		if ok = len(part) == f.digits; !ok {
			break
		}
		var err error
		if f.number == nil {
			_, err = hex.Decode(a.GID[:], []byte(part))
		} else {
			var v uint64
			v, err = strconv.ParseUint(part, 16, 32)
			*f.number = uint32(v)
		}
		ok = err == nil
	}
	if !ok {
		return QPAddr{}, fmt.Errorf("parse QP address %q: not LID:QP:PSN:GID of 4, 6, 6 and 32 hexadecimal digits, or these and VENDOR:ECE of 6 and 8", s)
	}
	a.LID = uint16(lid)
	return a, nil
}

// PathFrom returns the path from a local QP to this one, for address handles and QPAttr.
func (a QPAddr) PathFrom(local QPAddr) AddressVector {
	return AddressVector{
		Global: a.GID != GID{}, DGID: a.GID, SGIDIndex: uint8(local.GIDIndex), HopLimit: 64,
		DLID: a.LID, Port: uint8(local.Port),
	}
}

// MarshalText implements encoding.TextMarshaler. The text is that of String and, if there is an
// ECE, its two numbers.
func (a QPAddr) MarshalText() ([]byte, error) {
	text := a.String()
	if a.ECE != (ECE{}) {
		text += fmt.Sprintf(":%06x:%08x", a.ECE.VendorID, a.ECE.Options)
	}
	return []byte(text), nil
}

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

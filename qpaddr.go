package verbs

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// QPAddr is the address of a QP: what a peer must know to connect to it. Programs without
// a connection manager exchange their addresses once, see [QPAddr.Exchange].
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

// MarshalText implements encoding.TextMarshaler. The text is that of String.
func (a QPAddr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts what ParseQPAddr accepts.
func (a *QPAddr) UnmarshalText(text []byte) (err error) {
	*a, err = ParseQPAddr(string(text))
	return err
}

// Exchange sends the address to the peer and receives the peer's, each as a line of text.
// Both sides call it on a connection such as a net.Conn, whose deadline bounds the call.
// After an error the connection must be closed.
func (a QPAddr) Exchange(conn io.ReadWriter) (peer QPAddr, err error) {
	sent := make(chan error, 1)
	go func() { // the peer may send before it receives
		_, err := io.WriteString(conn, a.String()+"\n")
		sent <- err
	}()
	line := make([]byte, qpAddrSize+1)
	if _, err := io.ReadFull(conn, line); err != nil {
		return peer, fmt.Errorf("exchange QP addresses: receive: %w", err)
	}
	if err := <-sent; err != nil {
		return peer, fmt.Errorf("exchange QP addresses: send: %w", err)
	}
	peer, err = ParseQPAddr(strings.TrimSuffix(string(line), "\n"))
	if err != nil {
		return QPAddr{}, fmt.Errorf("exchange QP addresses: %w", err)
	}
	return peer, nil
}

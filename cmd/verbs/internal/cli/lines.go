package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// LongestLine is the length of the longest line that Lines accepts.
const LongestLine = 64 << 10

// ErrProtocol reports an unexpected message from the peer.
var ErrProtocol = errors.New("protocol violation by the peer: does it run another version?")

// Lines is a connection that carries messages of type M as lines of JSON. One goroutine may send
// and one may receive at a time.
type Lines[M any] struct {
	Conn net.Conn
	enc  *json.Encoder
	in   *bufio.Scanner
}

// NewLines returns the connection as one of lines.
func NewLines[M any](conn net.Conn) Lines[M] {
	l := Lines[M]{conn, json.NewEncoder(conn), bufio.NewScanner(conn)}
	l.in.Buffer(nil, LongestLine)
	return l
}

// Send sends a message within a time.
func (l *Lines[M]) Send(m M, limit time.Duration) error {
	l.Conn.SetWriteDeadline(time.Now().Add(limit))
	if err := l.enc.Encode(m); err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	return nil
}

// Receive waits for a message. The error matches io.EOF if the peer has closed the connection.
func (l *Lines[M]) Receive() (m M, err error) {
	if !l.in.Scan() {
		return m, fmt.Errorf("control connection: %w", cmp.Or(l.in.Err(), io.EOF))
	}
	if err := json.Unmarshal(l.in.Bytes(), &m); err != nil {
		return m, fmt.Errorf("%w (%w)", ErrProtocol, err)
	}
	return m, nil
}

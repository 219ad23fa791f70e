package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// pingpongMeeting is how the two sides learn each other's addresses. It is
// that of rdma-core's programs, on a TCP connection:
//
//	client                          server
//	addresses ────────────────────►
//	                                connects its QPs
//	             ◄───────────────── addresses
//	connects its QPs
//	"done" ───────────────────────►
//
// With an SRQ there are always pingpongMaxQP addresses, those past the last QP
// all zeros; without, there is one.
type pingpongMeeting struct {
	port    uint16
	timeout time.Duration // for the peer to answer, 0 is none
	local   []uverbs.Endpoint
	onWire  int // how many addresses each side sends
	connect func(remote []uverbs.Endpoint) error
}

const (
	pingpongMaxQP = 256
	pingpongDone  = "done\x00"
)

// join meets a server.
func (m *pingpongMeeting) join(ctx context.Context, host string) ([]uverbs.Endpoint, error) {
	d := net.Dialer{Timeout: m.timeout}
	conn, err := d.DialContext(ctx, "tcp", joinPort(host, int(m.port)))
	if err != nil {
		return nil, pingpongCause(ctx, err)
	}
	return m.meet(ctx, conn, m.client)
}

// host meets the one client that it waits for.
func (m *pingpongMeeting) host(ctx context.Context) ([]uverbs.Endpoint, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", joinPort("", int(m.port)))
	if err != nil {
		return nil, pingpongCause(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	if stop() {
		l.Close()
	}
	if err != nil {
		return nil, pingpongCause(ctx, err)
	}
	return m.meet(ctx, conn, m.server)
}

// meet plays a side; neither a silent peer nor a signal leaves it waiting.
func (m *pingpongMeeting) meet(ctx context.Context, conn net.Conn, side func(net.Conn) ([]uverbs.Endpoint, error)) ([]uverbs.Endpoint, error) {
	defer conn.Close()
	if m.timeout > 0 {
		conn.SetDeadline(time.Now().Add(m.timeout))
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	remote, err := side(conn)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it hung up; it may say why")
	}
	if err != nil {
		return nil, fmt.Errorf("peer %v: %w", conn.RemoteAddr(), err)
	}
	return remote, nil
}

func (m *pingpongMeeting) client(conn net.Conn) ([]uverbs.Endpoint, error) {
	if err := m.tell(conn); err != nil {
		return nil, err
	}
	remote, err := m.hear(conn)
	if err != nil {
		return nil, err
	}
	if err := m.connect(remote); err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, pingpongDone)
	return remote, err
}

func (m *pingpongMeeting) server(conn net.Conn) ([]uverbs.Endpoint, error) {
	remote, err := m.hear(conn)
	if err != nil {
		return nil, err
	}
	if err := m.connect(remote); err != nil {
		return nil, err
	}
	if err := m.tell(conn); err != nil {
		return nil, err
	}
	done := make([]byte, len(pingpongDone))
	if _, err := io.ReadFull(conn, done); err != nil {
		return nil, err
	}
	if string(done) != pingpongDone {
		return nil, fmt.Errorf("it says %q where %q belongs", done, pingpongDone)
	}
	return remote, nil
}

// tell sends the addresses all at once: C takes one with a single read.
func (m *pingpongMeeting) tell(conn net.Conn) error {
	var b []byte
	for i := range m.onWire {
		var e uverbs.Endpoint
		if i < len(m.local) {
			e = m.local[i]
		}
		b = appendAddress(b, e)
	}
	_, err := conn.Write(b)
	return err
}

// hear returns the addresses of as many QPs as there are here.
func (m *pingpongMeeting) hear(conn net.Conn) ([]uverbs.Endpoint, error) {
	all := make([]uverbs.Endpoint, m.onWire)
	for i := range all {
		b := make([]byte, addressSize)
		_, err := io.ReadFull(conn, b)
		if err != nil {
			return nil, err
		}
		if all[i], err = parseAddress(b); err != nil {
			return nil, err
		}
	}
	used := slices.IndexFunc(all, func(e uverbs.Endpoint) bool { return e.QPNum == 0 })
	if used < 0 {
		used = len(all)
	}
	if used != len(m.local) {
		return nil, fmt.Errorf("it uses %d QPs and this side %d: give both the same -q", used, len(m.local))
	}
	return all[:used], nil
}

const addressSize = len("LLLL:QQQQQQ:PPPPPP:") + 2*len(verbs.GID{}) + 1

// appendAddress appends an address as text of addressSize, with C's zero at
// its end.
func appendAddress(b []byte, e uverbs.Endpoint) []byte {
	return fmt.Appendf(b, "%04x:%06x:%06x:%x\x00", e.LID, e.QPNum, e.PSN, e.GID[:])
}

func parseAddress(b []byte) (e uverbs.Endpoint, err error) {
	text, _ := bytes.CutSuffix(b, []byte{0})
	parts := bytes.Split(text, []byte{':'})
	bad := fmt.Errorf("it says %q where an address belongs", b)
	if len(b) != addressSize || len(text) != addressSize-1 || len(parts) != 4 {
		return e, bad
	}
	var numbers [3]uint32
	for i, bits := range []int{16, 24, 24} {
		v, err := strconv.ParseUint(string(parts[i]), 16, bits)
		if err != nil {
			return e, bad
		}
		numbers[i] = uint32(v)
	}
	if len(parts[3]) != 2*len(e.GID) {
		return e, bad
	}
	if _, err := hex.Decode(e.GID[:], parts[3]); err != nil {
		return e, bad
	}
	e.LID, e.QPNum, e.PSN = uint16(numbers[0]), numbers[1], numbers[2]
	return e, nil
}

// pingpongCause is why the context ended, if that is what err is about.
func pingpongCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

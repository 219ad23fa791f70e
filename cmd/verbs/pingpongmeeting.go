package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/verbs"
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
	local   []verbs.QPAddr
	onWire  int // how many addresses each side sends
	connect func(remote []verbs.QPAddr) error
}

const (
	pingpongMaxQP = 256
	pingpongDone  = "done\x00"
)

// join meets a server.
func (m *pingpongMeeting) join(ctx context.Context, host string) ([]verbs.QPAddr, error) {
	d := net.Dialer{Timeout: m.timeout}
	conn, err := d.DialContext(ctx, "tcp", joinPort(host, int(m.port)))
	if err != nil {
		return nil, pingpongCause(ctx, err)
	}
	return m.meet(ctx, conn, m.client)
}

// host meets the one client that it waits for.
func (m *pingpongMeeting) host(ctx context.Context) ([]verbs.QPAddr, error) {
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
func (m *pingpongMeeting) meet(ctx context.Context, conn net.Conn, side func(net.Conn) ([]verbs.QPAddr, error)) ([]verbs.QPAddr, error) {
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

func (m *pingpongMeeting) client(conn net.Conn) ([]verbs.QPAddr, error) {
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

func (m *pingpongMeeting) server(conn net.Conn) ([]verbs.QPAddr, error) {
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
		var e verbs.QPAddr
		if i < len(m.local) {
			e = m.local[i]
		}
		b = append(append(b, e.String()...), 0) // as C has it
	}
	_, err := conn.Write(b)
	return err
}

// hear returns the addresses of as many QPs as there are here.
func (m *pingpongMeeting) hear(conn net.Conn) ([]verbs.QPAddr, error) {
	all := make([]verbs.QPAddr, m.onWire)
	for i := range all {
		b := make([]byte, len(verbs.QPAddr{}.String())+1)
		_, err := io.ReadFull(conn, b)
		if err != nil {
			return nil, err
		}
		text, ended := strings.CutSuffix(string(b), "\x00")
		if all[i], err = verbs.ParseQPAddr(text); err != nil || !ended {
			return nil, fmt.Errorf("it says %q where an address belongs", b)
		}
	}
	used := slices.IndexFunc(all, func(e verbs.QPAddr) bool { return e.QPNum == 0 })
	if used < 0 {
		used = len(all)
	}
	if used != len(m.local) {
		return nil, fmt.Errorf("it uses %d QPs and this side %d: give both the same -q", used, len(m.local))
	}
	return all[:used], nil
}

// pingpongCause is why the context ended, if that is what err is about.
func pingpongCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

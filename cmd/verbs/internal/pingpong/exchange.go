package pingpong

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
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// exchange swaps the addresses of the two sides on a TCP connection, as rdma-core's programs
// do:
//
//	client                          server
//	addresses ────────────────────►
//	                                connects its QPs
//	             ◄───────────────── addresses
//	connects its QPs
//	"done" ───────────────────────►
//
// With an SRQ there are always maxQP addresses, which are all zeros after the last QP;
// otherwise there is one.
type exchange struct {
	timeout time.Duration // for the peer to answer, 0 is none
	local   []verbs.QPAddr
	onWire  int // how many addresses each side sends
	connect func(remote []verbs.QPAddr) error
}

const (
	maxQP    = 256
	doneText = "done\x00"
)

// run connects to a server, or without a host waits for one client, and returns the peer's
// addresses.
func (x *exchange) run(ctx context.Context, host string, port int) ([]verbs.QPAddr, error) {
	side := x.server
	dial := func() (net.Conn, error) { return accept(ctx, port) }
	if host != "" {
		side = x.client
		dial = func() (net.Conn, error) {
			return (&net.Dialer{Timeout: x.timeout}).DialContext(ctx, "tcp", cli.JoinPort(host, port))
		}
	}
	conn, err := dial()
	if err != nil {
		return nil, cli.Cause(ctx, err)
	}
	return x.runOn(ctx, conn, side)
}

// accept waits for one client.
func accept(ctx context.Context, port int) (net.Conn, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cli.JoinPort("", port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	return l.Accept()
}

// runOn runs one side on a connection. It fails when x.timeout has passed or ctx ends.
func (x *exchange) runOn(ctx context.Context, conn net.Conn, side func(net.Conn) ([]verbs.QPAddr, error)) ([]verbs.QPAddr, error) {
	defer conn.Close()
	if x.timeout > 0 {
		conn.SetDeadline(time.Now().Add(x.timeout))
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	remote, err := side(conn)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it closed the connection: see its output for the reason")
	}
	if err != nil {
		return nil, fmt.Errorf("peer %v: %w", conn.RemoteAddr(), err)
	}
	return remote, nil
}

func (x *exchange) client(conn net.Conn) ([]verbs.QPAddr, error) {
	if err := x.send(conn); err != nil {
		return nil, err
	}
	remote, err := x.receive(conn)
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, doneText)
	return remote, err
}

func (x *exchange) server(conn net.Conn) ([]verbs.QPAddr, error) {
	remote, err := x.receive(conn)
	if err != nil {
		return nil, err
	}
	if err := x.send(conn); err != nil {
		return nil, err
	}
	done := make([]byte, len(doneText))
	if _, err := io.ReadFull(conn, done); err != nil {
		return nil, err
	}
	if string(done) != doneText {
		return nil, fmt.Errorf("unexpected data %q, want %q", done, doneText)
	}
	return remote, nil
}

// send sends all addresses in one write: the C programs receive one in a single read.
func (x *exchange) send(conn net.Conn) error {
	var b []byte
	for _, a := range append(slices.Clip(x.local), make([]verbs.QPAddr, x.onWire-len(x.local))...) {
		b = append(append(b, a.String()...), 0) // the terminator of a C string
	}
	_, err := conn.Write(b)
	return err
}

// receive returns the peer's addresses, one for each QP of this side, and connects these.
func (x *exchange) receive(conn net.Conn) ([]verbs.QPAddr, error) {
	all := make([]verbs.QPAddr, x.onWire)
	for i := range all {
		b := make([]byte, len(verbs.QPAddr{}.String())+1)
		_, err := io.ReadFull(conn, b)
		if err != nil {
			return nil, err
		}
		text, ended := strings.CutSuffix(string(b), "\x00")
		if all[i], err = verbs.ParseQPAddr(text); err != nil || !ended {
			return nil, fmt.Errorf("invalid address %q", b)
		}
	}
	if used := slices.IndexFunc(all, func(a verbs.QPAddr) bool { return a.QPNum == 0 }); used >= 0 {
		all = all[:used]
	}
	if len(all) != len(x.local) {
		return nil, fmt.Errorf("it uses %d QPs and this side %d: give both the same -q", len(all), len(x.local))
	}
	return all, x.connect(all)
}

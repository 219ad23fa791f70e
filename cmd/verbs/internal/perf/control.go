package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// message is a line on the control connection. One field is set.
type message struct {
	Work   *work   `json:"work,omitempty"`
	Offer  *offer  `json:"offer,omitempty"`
	Start  *start  `json:"start,omitempty"`
	Done   *done   `json:"done,omitempty"`
	Report *report `json:"report,omitempty"`
	Fault  *fault  `json:"error,omitempty"`
}

// offer holds the port that the QPs connect to, and the token that identifies the run.
type offer struct {
	Port  uint16 `json:"port"`
	Token uint32 `json:"token"`
}

// start reports that a side is ready, where its memory is, and on UD its QPs.
type start struct {
	Addr uint64         `json:"addr"`
	RKey uint32         `json:"rkey"`
	Len  int            `json:"len"`
	QPs  []verbs.QPAddr `json:"qps,omitempty"`
}

// done reports that a side sends no more.
type done struct {
	Sent uint64 `json:"sent"`
}

// report holds the counts of a side.
type report struct {
	Sent     uint64  `json:"sent"`
	Received uint64  `json:"received"` // of atomics, counted in memory
	Seconds  float64 `json:"seconds"`  // of sending
	Damage   string  `json:"damage,omitempty"`
}

// fault is the error for which a side aborts.
type fault struct {
	Text        string `json:"text"`
	Unsupported bool   `json:"unsupported,omitempty"`
}

func (f *fault) Error() string { return f.Text }

func (f *fault) Is(target error) bool { return f.Unsupported && target == errors.ErrUnsupported }

const peerTimeout = 15 * time.Second // for an answer that requires no work

// control is the connection on which the sides agree on runs.
type control struct{ cli.Lines[message] }

// controlOptions disable polling, which would disturb the run that is measured, and limit the wait
// for a peer that does not answer.
var controlOptions = rsock.Options{SpinTime: -1, Linger: 2 * time.Second}

func newControl(conn net.Conn) *control { return &control{cli.NewLines[message](conn)} }

func (c *control) local() netip.Addr  { return addrOf(c.Conn.LocalAddr()) }
func (c *control) remote() netip.Addr { return addrOf(c.Conn.RemoteAddr()) }

func addrOf(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr() }

func (c *control) send(m message) error { return c.Send(m, peerTimeout) }

// receive waits for a message. It returns a fault as an error. Once ctx has
// ended the connection cannot be used any more.
func (c *control) receive(ctx context.Context) (m message, err error) {
	stop := context.AfterFunc(ctx, func() { c.Conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if m, err = c.Receive(); err != nil {
		return m, cli.Cause(ctx, err)
	}
	if m.Fault != nil {
		m.Fault.Text = cli.Printable(m.Fault.Text)
		return m, fmt.Errorf("peer: %w", m.Fault)
	}
	if m.Report != nil {
		m.Report.Damage = cli.Printable(m.Report.Damage)
	}
	return m, nil
}

// sendError sends the peer the error for which this side aborts.
func (c *control) sendError(err error) error {
	return c.send(message{Fault: &fault{err.Error(), errors.Is(err, errors.ErrUnsupported)}})
}

// connect opens the control connection, from a device if one is named, with the type of service tos.
func connect(ctx context.Context, device, addr string, tos uint8) (*control, error) {
	d := rsock.Dialer{Timeout: peerTimeout, Options: controlOptions, TOS: tos}
	if device != "" {
		source, err := cli.DeviceAddr(device)
		if err != nil {
			return nil, err
		}
		d.LocalAddr = netip.AddrPortFrom(source, 0)
	}
	conn, err := d.DialContext(ctx, "rdma", addr)
	switch {
	case errors.Is(err, rsock.ErrProtocol):
		return nil, fmt.Errorf("%w: the server is not verbs perf but perhaps perftest (%s)", err, perftestPrograms)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: start verbs perf server there; perftest (%s) cannot be the server", err, perftestPrograms)
	case err != nil:
		return nil, err
	}
	return newControl(conn), nil
}

const perftestPrograms = "ib_send_lat, ib_write_bw and so on"

package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// connect opens the control connection, from a device if one is named.
func connect(ctx context.Context, device, addr string) (*control, error) {
	d := rsock.Dialer{Timeout: peerTimeout, Options: controlOptions}
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

// requestRun requests the run and connects to the server.
func (s *session) requestRun() error {
	if err := s.ctl.send(message{Work: &s.work}); err != nil {
		return err
	}
	wait, cancel := context.WithTimeoutCause(s.ctx, peerTimeout, errors.New("the server does not answer"))
	m, err := s.ctl.receive(wait)
	cancel()
	switch {
	case err != nil:
		return err
	case m.Offer == nil:
		return cli.ErrProtocol
	}
	s.token = m.Offer.Token
	s.readMessages()
	if s.op.datagram {
		return s.openUD()
	}
	return s.dial(m.Offer.Port)
}

// powers returns the message sizes of -a, powers of 2.
func powers() (all []int) {
	for n := 2; n <= maxSize; n *= 2 {
		all = append(all, n)
	}
	return all
}

// seconds is a duration; a number without a unit is in seconds.
type seconds time.Duration

func (s *seconds) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil {
		d, err = time.ParseDuration(string(b) + "s")
	}
	*s = seconds(d)
	return err
}

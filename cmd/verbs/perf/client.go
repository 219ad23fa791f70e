package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// connect opens the control connection.
func connect(ctx context.Context, source netip.Addr, addr string) (*control, error) {
	d := rsock.Dialer{Timeout: patience}
	if source.IsValid() {
		d.LocalAddr = netip.AddrPortFrom(source, 0)
	}
	conn, err := d.DialContext(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	return newControl(conn), nil
}

// ask has a run made and returns what came of it.
func ask(ctx context.Context, ctl *control, w work, begins func(*side)) (r *result, err error) {
	s, err := newSide(ctx, w, ctl, true)
	defer func() { err = s.leave(err) }()
	if err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	begins(s)
	o, err := s.play()
	if err != nil {
		return nil, err
	}
	return newResult(s, o), s.compare(o)
}

// enter asks for the run and connects to the server, until both are ready.
func (s *side) enter() error {
	if err := s.ctl.send(message{Work: &s.work}); err != nil {
		return err
	}
	wait, cancel := context.WithTimeoutCause(s.ctx, patience, errors.New("the server does not answer"))
	m, err := s.ctl.receive(wait)
	cancel()
	switch {
	case err != nil:
		return err
	case m.Offer == nil:
		return errProtocol
	}
	s.token = m.Offer.Token
	s.hear()
	if s.op.datagram {
		err = s.openUD()
	} else {
		err = s.dial(m.Offer.Port)
	}
	if err == nil {
		err = s.meet()
	}
	if err != nil {
		return s.why(err)
	}
	return nil
}

// compare has both sides agree on what was sent and received.
func (s *side) compare(o outcome) error {
	var wrong []string
	check := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	if !s.op.datagram && (s.op.receives || s.op.atomic) {
		check(o.peer.Received != o.own.Sent, "%d were sent and the peer received %d", o.own.Sent, o.peer.Received)
		check(o.own.Received != o.peer.Sent, "the peer sent %d and %d were received", o.peer.Sent, o.own.Received)
	}
	if s.answered() && !s.op.datagram {
		check(o.peer.Sent != o.own.Sent, "%d were sent and the peer answered %d", o.own.Sent, o.peer.Sent)
	}
	check(o.peer.Received > o.own.Sent || s.op.receives && o.own.Received > o.peer.Sent, "more came than was sent")
	check(o.peer.Damage != "", "the peer got damaged data: %s", o.peer.Damage)
	check(o.own.Damage != "", "damaged data: %s", o.own.Damage)
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%v: %s", &s.work, strings.Join(wrong, "; "))
}

// sizes are the powers of 2 that -a stands for.
func sizes() (all []int) {
	for n := 2; n <= maxSize; n *= 2 {
		all = append(all, n)
	}
	return all
}

// askAll makes the run, or those of all sizes.
func askAll(ctx context.Context, ctl *control, w work, all bool, begins func(*side), each func(*result)) ([]*result, error) {
	list := []int{w.Size}
	if all {
		list = sizes()
	}
	var results []*result
	for _, w.Size = range list {
		r, err := ask(ctx, ctl, w, begins)
		if all && errors.Is(err, errMTU) && len(results) > 0 {
			break
		}
		if err != nil {
			return results, err
		}
		results = append(results, r)
		each(r)
	}
	return results, nil
}

// seconds is a duration; a plain number is of seconds.
type seconds time.Duration

func (s *seconds) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil {
		d, err = time.ParseDuration(string(b) + "s")
	}
	*s = seconds(d)
	return err
}

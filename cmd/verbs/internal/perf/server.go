package perf

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// server serves any number of clients concurrently, until ctx ends.
type server struct {
	log    func(format string, args ...any)
	begins func(*side) (ends func())
	report func(*result)
}

func (v *server) serve(ctx context.Context, addr string) error {
	l, err := (&rsock.ListenConfig{Options: controlOptions}).Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	v.log("listening on %v", l.Addr())
	return cli.Serve(ctx, l, v.client)
}

// client serves one client, run after run. Its failure does not affect the others.
func (v *server) client(ctx context.Context, conn net.Conn) {
	ctl := newControl(conn)
	for {
		m, err := ctl.receive(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return
		}
		if err == nil && m.Work == nil {
			err = errProtocol
		}
		if err == nil {
			err = m.Work.validate()
		}
		if err != nil {
			ctl.give(err)
		} else {
			err = v.run(ctx, ctl, *m.Work)
		}
		if err != nil {
			if ctx.Err() == nil {
				v.log("client %v: %v", conn.RemoteAddr(), err)
			}
			return
		}
	}
}

func (v *server) run(ctx context.Context, ctl *control, w work) error {
	r, err := run(ctx, w, ctl, false, v.begins)
	if r != nil {
		v.report(r)
	}
	return err
}

// offer accepts the client's connections, on a port of their own, or creates the QPs for
// datagrams.
func (s *side) offer() error {
	s.token = newToken()
	offer := offer{Token: s.token}
	if s.op.datagram {
		if err := s.openUD(); err != nil {
			return err
		}
		defer s.hear()
		return s.ctl.send(message{Offer: &offer})
	}
	l, err := cm.Listen(s.ctx, netip.AddrPortFrom(s.ctl.local(), 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	offer.Port = l.Addr().Port()
	if err := s.ctl.send(message{Offer: &offer}); err != nil {
		return err
	}
	s.hear()
	return s.accept(l)
}

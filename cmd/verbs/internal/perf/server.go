package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// server serves any number of clients concurrently, until ctx ends.
type server struct {
	log     func(format string, args ...any)
	onStart func(*session) (onEnd func())
	report  func(*result)
}

func (v *server) serve(ctx context.Context, addr string, once bool) error {
	l, err := (&rsock.ListenConfig{Options: controlOptions, Logger: slog.New(clientErrorLog{slog.DiscardHandler, v.log})}).Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	v.log("listening on %v", l.Addr())
	if once {
		return v.serveOne(ctx, l)
	}
	return cli.Serve(ctx, l, func(ctx context.Context, conn net.Conn) {
		if err := v.client(ctx, conn); err != nil && ctx.Err() == nil {
			v.log("%v", err)
		}
	})
}

// serveOne serves the first client, whose failure is its own.
func (v *server) serveOne(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	stop()
	l.Close()
	if err != nil {
		return cli.Cause(ctx, err)
	}
	defer conn.Close()
	return cli.Cause(ctx, v.client(ctx, conn))
}

// clientErrorLog is the handler of a listener's log that reports clients that do not speak its
// protocol.
type clientErrorLog struct {
	slog.Handler
	log func(format string, args ...any)
}

func (s clientErrorLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (s clientErrorLog) Handle(_ context.Context, r slog.Record) error {
	var remote, err any
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "remote":
			remote = a.Value.Any()
		case "err":
			err = a.Value.Any()
		}
		return true
	})
	if e, ok := err.(error); ok && errors.Is(e, rsock.ErrProtocol) {
		s.log("client %v: it is not verbs perf but perhaps perftest (%s)", remote, perftestPrograms)
	} else {
		s.log("client %v: %s: %v", remote, r.Message, err)
	}
	return nil
}

// client serves one client, run after run. Its failure does not affect the others.
func (v *server) client(ctx context.Context, conn net.Conn) error {
	ctl := newControl(conn)
	for {
		m, err := ctl.receive(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		}
		if err == nil && m.Work == nil {
			err = cli.ErrProtocol
		}
		if err == nil {
			err = m.Work.validate()
		}
		if err != nil {
			ctl.sendError(err)
		} else {
			var r *result
			if r, err = run(ctx, *m.Work, ctl, false, v.onStart); r != nil {
				v.report(r)
			}
		}
		if err != nil {
			return fmt.Errorf("client %v: %w", conn.RemoteAddr(), err)
		}
	}
}

// offer accepts the client's connections, on a port of their own, or creates the QPs for
// datagrams.
func (s *session) offer() error {
	s.token = newToken()
	offer := offer{Token: s.token}
	if s.op.datagram {
		if err := s.openUD(); err != nil {
			return err
		}
		defer s.readMessages()
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
	s.readMessages()
	return s.accept(l)
}

package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// server serves clients concurrently, until ctx ends.
type server struct {
	log     func(format string, args ...any)
	onStart func(*session) (onEnd func())
	report  func(*result)
	memory  atomic.Int64 // bytes of all runs
}

// What all clients together can take: see docs/security.md.
const (
	maxClients   = 64
	maxServed    = 4 << 30 // bytes of memory
	idleLimit    = time.Minute
	refusalLimit = time.Second
)

func (v *server) serve(ctx context.Context, addrs []string, once bool) error {
	config := rsock.ListenConfig{Options: controlOptions, Logger: slog.New(clientErrorLog{slog.DiscardHandler, v.log})}
	var all []net.Listener
	var refused error
	for _, addr := range addrs {
		l, err := config.Listen(ctx, "rdma", addr)
		if errors.Is(err, syscall.EAFNOSUPPORT) { // the kernel's erdma has no IPv6 (erdma_create_listen)
			refused = errors.Join(refused, err)
			continue
		}
		if err != nil {
			return errors.Join(err, cli.Join(all...).Close())
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		return refused
	}
	for _, l := range all {
		v.log("listening on %v", l.Addr())
	}
	l := cli.Join(all...)
	if once {
		return v.serveOne(ctx, l)
	}
	return v.serveAll(ctx, l, maxClients)
}

// serveAll serves at most a number of clients at a time.
func (v *server) serveAll(ctx context.Context, l net.Listener, most int) error {
	s := cli.Server{
		Most: most,
		Handle: func(ctx context.Context, conn net.Conn) {
			if err := v.client(ctx, conn); err != nil && ctx.Err() == nil {
				v.log("%v", err)
			}
		},
		Refuse: func(conn net.Conn, why error) {
			ctl := newControl(conn)
			ctx, cancel := context.WithTimeout(ctx, refusalLimit)
			defer cancel()
			if _, err := ctl.receive(ctx); err == nil {
				ctl.sendError(why)
			}
		},
		Log: func(err error) { v.log("%v", err) },
	}
	return s.Serve(ctx, l)
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
		idle, cancel := context.WithTimeoutCause(ctx, idleLimit, fmt.Errorf("no run for %v", idleLimit))
		m, err := ctl.receive(idle)
		cancel()
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
			err = v.run(ctx, *m.Work, ctl)
		}
		if err != nil {
			return fmt.Errorf("client %v: %w", conn.RemoteAddr(), err)
		}
	}
}

// run makes a run, if there is memory for it.
func (v *server) run(ctx context.Context, w work, ctl *control) error {
	need := w.memory()
	defer v.memory.Add(-need)
	if all := v.memory.Add(need); all > maxServed {
		err := fmt.Errorf("%v needs %d bytes of memory, and the runs of others have %d of %d: try again later", &w, need, all-need, int64(maxServed))
		ctl.sendError(err)
		return err
	}
	r, err := run(ctx, w, ctl, false, v.onStart)
	if r != nil {
		v.report(r)
	}
	return err
}

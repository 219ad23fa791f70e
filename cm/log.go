package cm

import (
	"context"
	"log/slog"
	"net/netip"
	"time"
)

// journal logs the steps of a connection, with the time since its beginning. The zero
// value logs nothing and takes no time.
type journal struct {
	log   *slog.Logger
	begin time.Time
}

func newJournal(l *slog.Logger) (j journal) {
	if l != nil {
		j = journal{l, time.Now()}
	}
	return j
}

// note logs a message with the attributes that are known: device, addresses, err, and the
// time since the connection attempt began.
func (j *journal) note(level slog.Level, msg, device string, local, remote netip.AddrPort, err error) {
	if j.log == nil || !j.log.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, 5)
	if device != "" {
		attrs = append(attrs, slog.String("device", device))
	}
	if local.IsValid() {
		attrs = append(attrs, slog.String("local", local.String()))
	}
	if remote.IsValid() {
		attrs = append(attrs, slog.String("remote", remote.String()))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	if !j.begin.IsZero() {
		attrs = append(attrs, slog.Duration("elapsed", time.Since(j.begin)))
	}
	j.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// step logs a step of a dial before there is an endpoint.
func (j *journal) step(msg string, remote netip.AddrPort, err error) {
	j.note(slog.LevelDebug, msg, "", netip.AddrPort{}, remote, err)
}

// note logs a message about the endpoint.
func (e *Endpoint) note(level slog.Level, msg string, err error) {
	if e.journal.log == nil {
		return
	}
	device := ""
	if e.PD != nil {
		device = e.PD.Context().Device().Name
	}
	e.journal.note(level, msg, device, e.route.Local, e.route.Remote, err)
}

// discard closes an endpoint that no caller has, and logs the error.
func (e *Endpoint) discard() {
	if err := e.Close(); err != nil {
		e.note(slog.LevelWarn, "endpoint of a failed connection cannot be closed", err)
	}
}

package cm

import (
	"context"
	"log/slog"
	"net/netip"
	"time"
)

// connLogger logs the steps of a connection, with the time since its beginning. The zero
// value logs nothing and takes no time.
type connLogger struct {
	logger *slog.Logger
	start  time.Time
}

func newConnLogger(l *slog.Logger) (j connLogger) {
	if l != nil {
		j = connLogger{l, time.Now()}
	}
	return j
}

// log logs a message with the attributes that are known: device, addresses, err, and the
// time since the connection attempt began.
func (j *connLogger) log(level slog.Level, msg, device string, local, remote netip.AddrPort, err error) {
	if j.logger == nil || !j.logger.Enabled(context.Background(), level) {
		return
	}
	var attrs []slog.Attr
	add := func(known bool, key string, value any) {
		if known {
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	add(device != "", "device", device)
	add(local.IsValid(), "local", local.String())
	add(remote.IsValid(), "remote", remote.String())
	add(err != nil, "err", err)
	add(!j.start.IsZero(), "elapsed", time.Since(j.start))
	j.logger.LogAttrs(context.Background(), level, msg, attrs...)
}

// logStep logs a step of a dial before there is an endpoint.
func (j *connLogger) logStep(msg string, remote netip.AddrPort, err error) {
	j.log(slog.LevelDebug, msg, "", netip.AddrPort{}, remote, err)
}

// logStep logs a message about the endpoint.
func (e *Endpoint) logStep(level slog.Level, msg string, err error) {
	if e.log.logger == nil {
		return
	}
	device := ""
	if e.PD != nil {
		device = e.PD.Context().Device().Name
	}
	e.log.log(level, msg, device, e.route.Local, e.route.Remote, err)
}

// discard closes an endpoint that no caller has, and logs the error.
func (e *Endpoint) discard() {
	if err := e.Close(); err != nil {
		e.logStep(slog.LevelWarn, "endpoint of a failed connection cannot be closed", err)
	}
}

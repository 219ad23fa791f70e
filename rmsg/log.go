package rmsg

import (
	"context"
	"log/slog"
)

func (l *Loop) log(level slog.Level, text string, attrs ...slog.Attr) {
	if l.opt.Logger != nil {
		l.opt.Logger.LogAttrs(context.Background(), level, text, attrs...)
	}
}

// warn logs a failure that no call returns.
func (l *Loop) warn(text string, s *Socket, err error) { l.logSocket(slog.LevelWarn, text, s, err) }

// logSocket logs a message about a socket.
func (l *Loop) logSocket(level slog.Level, text string, s *Socket, err error) {
	if l.opt.Logger == nil {
		return
	}
	attrs := []slog.Attr{slog.String("peer", s.addr)}
	if s.arena != nil {
		attrs = append(attrs, slog.String("device", s.arena.dev.name))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	l.log(level, text, attrs...)
}

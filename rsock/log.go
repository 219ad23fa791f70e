package rsock

import (
	"context"
	"errors"
	"log/slog"
)

// logTo logs, if there is a logger. No lock may be held: a handler may use connections.
func logTo(l *slog.Logger, level slog.Level, msg string, args ...any) {
	if l != nil {
		l.Log(context.Background(), level, msg, args...)
	}
}

// logEnd logs that the connection has ended with err.
func (c *Conn) logEnd(err error) {
	if c.log == nil {
		return
	}
	level := slog.LevelDebug
	if errors.Is(err, ErrProtocol) {
		level = slog.LevelWarn
	}
	logTo(c.log, level, "connection failed", "local", c.ep.LocalAddr(), "remote", c.ep.RemoteAddr(), "err", err)
}

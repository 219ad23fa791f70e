//go:build linux

package labtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log stores the lines of its logger.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Logger returns a logger of all levels that writes lines to l.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write adds to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String returns the log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Reset empties the log.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// Has reports whether the log has a line with all of the parts.
func (l *Log) Has(parts ...string) bool {
lines:
	for line := range strings.Lines(l.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		return true
	}
	return false
}

// Want waits until the log has a line with all of the parts.
func (l *Log) Want(t testing.TB, parts ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !l.Has(parts...); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("no line with %q in the log:\n%s", parts, l)
			return
		}
	}
}

//go:build linux

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// logRecorder is a slog.Handler that stores what is logged.
type logRecorder struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	level slog.Level
	msg   string
	attrs map[string]slog.Value
}

func (r *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *logRecorder) WithGroup(string) slog.Handler            { return r }

func (r *logRecorder) Handle(_ context.Context, rec slog.Record) error {
	l := logLine{rec.Level, rec.Message, map[string]slog.Value{}}
	rec.Attrs(func(a slog.Attr) bool { l.attrs[a.Key] = a.Value; return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
	return nil
}

func (r *logRecorder) messages() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		all = append(all, fmt.Sprintf("%v %s", l.level, l.msg))
	}
	return all
}

// find waits until a message is logged, and returns its last record.
func (r *logRecorder) find(t *testing.T, msg string) logLine {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		lines := r.lines
		r.mu.Unlock()
		for _, l := range slices.Backward(lines) {
			if l.msg == msg {
				return l
			}
		}
	}
	t.Fatalf("%q is not logged, but %q", msg, r.messages())
	return logLine{}
}

// TestLogger checks what both ends of a connection log, and what a listener logs.
func TestLogger(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 30*time.Second)
		dials, listens := new(logRecorder), new(logRecorder)
		l := labtest.Made((&cm.ListenConfig{Backlog: 1, Logger: slog.New(listens)}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		addr := l.Addr().String()
		d := cm.Dialer{Options: cm.Options{Logger: slog.New(dials)}}

		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			r := labtest.Must(l.Accept(ctx))(t)
			accepted <- labtest.Must(r.Accept(ctx, cm.Options{}))(t)
		}()
		client := labtest.Must(d.Dial(ctx, addr))(t)
		server := <-accepted
		client.Close()
		<-server.Done()
		server.Close()
		dials.find(t, "connection ended")
		listens.find(t, "connection ended")
		// Before that, a port that the kernel chose may have been in use.
		if got, want := dials.messages(), []string{"DEBUG address resolved", "DEBUG route resolved", "DEBUG connection established", "DEBUG connection ended"}; !slices.Equal(got[max(len(got)-len(want), 0):], want) {
			t.Errorf("the dialing side logged %q, not %q", got, want)
		}
		if got, want := listens.messages(), []string{"DEBUG connection requested", "DEBUG connection established", "DEBUG connection ended"}; !slices.Equal(got, want) {
			t.Errorf("the listening side logged %q, not %q", got, want)
		}
		for r, want := range map[*logRecorder]error{dials: verbs.ErrClosed, listens: verbs.ErrDisconnected} {
			up, ended := r.find(t, "connection established"), r.find(t, "connection ended")
			remote, local := server.LocalAddr().String(), client.LocalAddr().String()
			if r == listens {
				remote, local = local, remote
			}
			if up.attrs["device"].String() != device || up.attrs["local"].String() != local || up.attrs["remote"].String() != remote || up.attrs["elapsed"].Duration() <= 0 {
				t.Errorf("established: %v", up.attrs)
			}
			if err, _ := ended.attrs["err"].Any().(error); !errors.Is(err, want) || ended.attrs["elapsed"].Duration() < up.attrs["elapsed"].Duration() {
				t.Errorf("ended: %v", ended.attrs)
			}
		}

		go func() { labtest.Must(l.Accept(ctx))(t).Reject(nil) }()
		if _, err := d.Dial(ctx, addr); !labtest.Rejected(t, device, err) {
			t.Errorf("rejected: %v", err)
		}
		if got := listens.find(t, "connection rejected by the program"); got.level != slog.LevelWarn || !strings.HasPrefix(got.attrs["remote"].String(), labtest.AddrOf(device)) {
			t.Errorf("rejected: %v %v", got.level, got.attrs)
		}
		failed := dials.find(t, "dial failed")
		if err, _ := failed.attrs["err"].Any().(error); failed.level != slog.LevelDebug || !labtest.Rejected(t, device, err) || failed.attrs["remote"].String() != addr {
			t.Errorf("dial failed: %v %v", failed.level, failed.attrs)
		}
		if got := dials.messages(); slices.ContainsFunc(got, func(m string) bool { return strings.HasPrefix(m, "WARN") }) {
			t.Errorf("the dialing side logged %q", got)
		}

		// One request waits, the next is turned away.
		waiting := make(chan error, 1)
		go func() {
			_, err := cm.Dial(ctx, addr)
			waiting <- err
		}()
		labtest.Until(t, "the request to wait", func() bool { return l.Stats().Waiting > 0 })
		if _, err := d.Dial(ctx, addr); err == nil {
			t.Error("a connection beyond the backlog")
		}
		if got := listens.find(t, "connection request turned away: backlog is full"); got.level != slog.LevelWarn || got.attrs["local"].String() != addr {
			t.Errorf("turned away: %v %v", got.level, got.attrs)
		}
		want := cm.ListenerStats{Requests: 4, TurnedAway: 1, Accepted: 1, Rejected: 1, Waiting: 1}
		if got := l.Stats(); got != want {
			t.Errorf("%+v, not %+v", got, want)
		}
		l.Close()
		if err := <-waiting; err == nil {
			t.Error("a connection to a listener that is closed")
		}
		want.Waiting = 0
		if got := l.Stats(); got != want {
			t.Errorf("after Close: %+v, not %+v", got, want)
		}
	})
}

// TestListenerStats checks the counters of a listener.
func TestListenerStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 30*time.Second)
		l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		server := make(chan *cm.Endpoint, 10)
		refuse := errors.New("refused in Setup")
		go func() {
			for i := range 5 {
				r := labtest.Must(l.Accept(ctx))(t)
				if i == 2 {
					if _, err := r.Accept(ctx, cm.Options{Setup: func(*cm.Endpoint) error { return refuse }}); !errors.Is(err, refuse) {
						t.Errorf("Setup's error: %v", err)
					}
					server <- nil
					continue
				}
				server <- labtest.Must(r.Accept(ctx, cm.Options{}))(t)
			}
		}()
		for i := range 5 {
			client, err := cm.Dial(ctx, l.Addr().String())
			if (err == nil) == (i == 2) {
				t.Fatalf("dial %d: %v", i, err)
			}
			if e := <-server; e != nil {
				labtest.Close(t, e)
				labtest.Close(t, client)
				if i == 0 {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
		want := cm.ListenerStats{Requests: 5, Accepted: 4, Failed: 1, Open: 3}
		if got := l.Stats(); got != want {
			t.Errorf("%+v, not %+v", got, want)
		}
	})
}

//go:build linux

package uverbs_test

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// recorder is a slog.Handler that stores records.
type recorder struct {
	mu      sync.Mutex
	records []slog.Record
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	return nil
}

func (r *recorder) all() []slog.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]slog.Record(nil), r.records...)
}

// TestSetLogger drops objects. All are logged, once, except a region that is released
// with its PD.
func TestSetLogger(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		r := new(recorder)
		ctx.SetLogger(slog.New(r))
		closed := labtest.Must(ctx.AllocPD())(t)
		if err := closed.Close(); err != nil {
			t.Fatal(err)
		}
		func() {
			pd := labtest.Must(ctx.AllocPD())(t)
			cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 1}))(t)
			labtest.Must(pd.AllocMR(4096, 0, uverbs.MROptions{}))(t)
			labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		}()
		want := map[string]bool{"PD": true, "CQ": true, "QP": true}
		labtest.Until(t, "the records", func() bool {
			runtime.GC()
			return len(r.all()) >= len(want)
		})
		labtest.Collect()
		for _, rec := range r.all() {
			attrs := map[string]string{}
			rec.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true })
			kind, number, _ := strings.Cut(attrs["object"], " ")
			if rec.Level != slog.LevelWarn || attrs["device"] != device || !want[kind] || number == "" {
				t.Errorf("%v %q %v, want one each for %v", rec.Level, rec.Message, attrs, want)
			}
			delete(want, kind)
		}
		if len(want) > 0 {
			t.Errorf("not logged: %v", want)
		}
	})
}

package hosts

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// TestWork does rounds with each layer in both directions.
func TestWork(t *testing.T) {
	rounds, size := 10, 200_000
	if testing.Short() {
		rounds, size = 3, 50_000
	}
	eachLayer(t, func(t *testing.T, l *workload.Layer, d driver, p *peer) {
		t.Run("serve", func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			s := labtest.Must(l.Listen(ctx, d.hostAddr(1), func(err error) { t.Error(err) }))(t)
			defer s.Wait()
			defer stop()
			began := time.Now()
			p.call(t, "Use", UseArgs{l.Name, s.Addr, rounds, size}, &struct{}{})
			record(t, "work, served here", l, d, "right", time.Since(began))
		})
		t.Run("dial", func(t *testing.T) {
			at := p.serve(t, l, d)
			began := time.Now()
			ctx, stop := context.WithTimeout(t.Context(), workTimeout)
			defer stop()
			labtest.Check(t, l.Use(ctx, at, rounds, size))
			record(t, "work, dialed here", l, d, "right", time.Since(began))
		})
	})
}

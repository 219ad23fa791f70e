package hosts

import (
	"context"
	"testing"
	"time"
)

// TestWork has each layer work in both directions.
func TestWork(t *testing.T) {
	rounds, size := 10, 200_000
	if testing.Short() {
		rounds, size = 3, 50_000
	}
	eachLayer(t, func(t *testing.T, l *layer, d driver, p *peer) {
		t.Run("serve", func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			at, err := l.serve(ctx, d.on(1))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			p.call(t, "Use", Using{l.name, at, rounds, size}, &struct{}{})
			record(t, "work, served here", l, d, "right", time.Since(began))
		})
		t.Run("dial", func(t *testing.T) {
			at := p.serve(t, l, d)
			began := time.Now()
			ctx, stop := context.WithTimeout(t.Context(), workTime)
			defer stop()
			if err := l.use(ctx, at, rounds, size); err != nil {
				t.Fatal(err)
			}
			record(t, "work, dialed here", l, d, "right", time.Since(began))
		})
	})
}

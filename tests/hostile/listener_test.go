package hostile

import (
	"errors"
	"sync"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestHostileListener dials a listener whose answer is one that listeners refuse: the dial
// must fail with the error of the layer.
func TestHostileListener(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		for _, layer := range layers {
			for _, a := range layer.attacks {
				if a.want[0] != errRefused || !a.isFor(t, device) {
					continue
				}
				t.Run(layer.name+" "+a.name, func(t *testing.T) {
					t.Parallel()
					ctx := labtest.Within(t, waitTimeout)
					l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
					var wg sync.WaitGroup
					defer wg.Wait()
					wg.Go(func() {
						r, err := l.Accept(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						p := &peer{t: t, device: device}
						e, err := r.Accept(ctx, p.options(a.private))
						if err != nil {
							return // the other side did not wait
						}
						<-e.Done()
						if err := e.Close(); err != nil {
							t.Error(err)
						}
					})
					c, err := layer.dial(ctx, l.Addr().String())
					if err == nil {
						c.end()
					}
					for _, want := range layer.refusedErrors {
						if errors.Is(err, want) {
							return
						}
					}
					t.Errorf("dialing gave %v, want %v", err, layer.refusedErrors)
				})
			}
		}
	})
}

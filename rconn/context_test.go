//go:build linux

package rconn

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestPutContext puts and gets more than can be moved until the context ends, and with one that has
// ended. The connection is there afterwards.
func TestPutContext(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Adverts: 1}, Options{})
		const size = 64 << 20
		theirs := labtest.Made(b.Alloc(size, ReadWrite))(t)
		check(t, b.Post(Advert(3, theirs.All())))
		remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
		data := make([]byte, size)
		put := func(ctx context.Context) error { return a.Put(ctx, remote.At(0), data) }
		get := func(ctx context.Context) error { return a.Get(ctx, data, remote.At(0)) }
		ended, end := context.WithCancel(t.Context())
		end()
		for what, do := range map[string]func(context.Context) error{"put": put, "get": get} {
			for range 8 {
				if err := do(ended); !errors.Is(err, context.Canceled) {
					t.Errorf("%s with a context that has ended: %v", what, err)
				}
			}
			brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := do(brief); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s of 64 MiB within a millisecond: %v", what, err)
			}
			cancel()
			check(t, do(testContext(t)))
		}
	})
}

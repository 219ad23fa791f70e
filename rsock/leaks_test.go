//go:build linux

package rsock_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestLeaks tests that connections leave nothing behind, however they end.
func TestLeaks(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		use := func(opt rsock.Options, end func(a, b *rsock.Conn)) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					a, b, err := pair(device, opt)
					if err != nil {
						t.Error(err)
						return
					}
					var calls sync.WaitGroup
					calls.Go(func() { io.Copy(io.Discard, b) })
					calls.Go(func() { a.Write(make([]byte, 300000)) })
					end(a, b)
					a.Close()
					b.Close()
					calls.Wait()
				})
			}
			wg.Wait()
		}
		ends := []func(a, b *rsock.Conn){
			func(a, b *rsock.Conn) {},
			func(a, b *rsock.Conn) { a.SetLinger(0) },
			func(a, b *rsock.Conn) { b.SetLinger(0); b.Close() },
			func(a, b *rsock.Conn) { a.CloseWrite(); b.CloseWrite() },
			func(a, b *rsock.Conn) { a.SetDeadline(time.Now()); b.CloseRead() },
			func(a, b *rsock.Conn) { a.SetKeepAlivePeriod(time.Millisecond); time.Sleep(20 * time.Millisecond) },
		}
		use(rsock.Options{}, ends[0]) // opens the runtime's own files and goroutines
		before := labtest.SettledInventory(t)
		for _, end := range ends {
			use(rsock.Options{}, end)
		}
		labtest.CheckLeaks(t, before)
	})
}

//go:build linux

package rsock_test

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// inventory is labtest.Inventory without mappings that the runtime itself may add.
func inventory(t *testing.T) map[string]int {
	t.Helper()
	inv := labtest.Inventory(t)
	delete(inv, labtest.Anonymous)
	return inv
}

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
		time.Sleep(time.Second)       // until the state shared by connections is released
		before := inventory(t)
		for _, end := range ends {
			use(rsock.Options{}, end)
		}
		var now map[string]int
		for range 200 {
			if now = inventory(t); maps.Equal(now, before) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		for name, n := range now {
			if before[name] != n {
				t.Errorf("%s: were %d, are %d", name, before[name], n)
			}
		}
		buf := make([]byte, 1<<20)
		fmt.Printf("%s\n", buf[:runtime.Stack(buf, true)])
	})
}

//go:build linux

package rsock

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestConcurrentDials dials with several goroutines at once. On a slow machine either side may give
// up a handshake of many, but no error lacks its step.
func TestConcurrentDials(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var log labtest.Log
		// The default, 10 s, is short for an emulated machine with other work.
		lc := ListenConfig{Logger: slog.New(slog.NewTextHandler(&log, nil)), HandshakeTimeout: time.Minute}
		l := labtest.Must(lc.Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		for _, n := range []int{6, 16, 64} {
			if testing.Short() && n > 16 {
				continue
			}
			log.Reset()
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					c, err := Dial("rdma", l.Addr().String())
					switch {
					case err == nil:
						c.Close()
					case n > 16 && strings.Contains(err.Error(), "connect: connection rejected by the peer"): // HandshakeTimeout
					case n > 16 && strings.Contains(err.Error(), "connect: the peer has given up"): // the same, and its REJ is lost
					case n > 16 && strings.Contains(err.Error(), "connect: no answer within 30s"):
					case labtest.IWARP(t, device) && errors.Is(err, syscall.ETIMEDOUT): // MPAREP_TIMEOUT of its dialing side, 5 s
					default:
						t.Errorf("%d at once: %v", n, err)
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				t.Fatalf("the listener's log:\n%s", &log)
			}
		}
	})
}

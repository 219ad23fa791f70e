package hostile

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// stallListener sends half of MPA's header to siw's listener, in pieces, on connections until
// the kernel waits for the rest of one.
func stallListener(t *testing.T, addr string) (leave func()) {
	var all []net.Conn
	leave = func() {
		for _, c := range all {
			c.Close()
		}
	}
	for deadline := time.Now().Add(waitTimeout); !labtest.StuckSIW(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			leave()
			t.Fatal("the kernel does not wait for the rest")
		}
		c := labtest.Must(net.Dial("tcp", addr))(t)
		all = append(all, c)
		for i := range 5 {
			if _, err := c.Write([]byte("MPA ID Req")[i*2:][:2]); err != nil {
				t.Error(err)
			}
		}
	}
	return sync.OnceFunc(leave)
}

// TestHalfHeader sends half a header: no client can connect until these connections are closed,
// but there must be no other effect.
func TestHalfHeader(t *testing.T) {
	labtest.RequireKernel(t) // siw
	for _, l := range layers {
		withServer(t, l, labtest.SIW, 5*time.Second, func(t *testing.T, s *server, g *goodClient) {
			leave := stallListener(t, s.addr)
			defer leave()
			ctx := labtest.Within(t, time.Second)
			if _, err := l.dial(ctx, s.addr); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("dialing gave %v", err)
			}
			g.checkServed(t)
			leave()
			if err := l.echoOnce(s.addr); err != nil {
				t.Error(err)
			}
		})
	}
}

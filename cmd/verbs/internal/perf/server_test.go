package perf

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// TestServerLimits has a client that asks for more memory than others have left, and one that asks
// for nothing.
func TestServerLimits(t *testing.T) {
	w := work{Version: version, Op: "send", Mode: modeLat, Size: 8 << 20, Iters: 1, QPs: 1, TxDepth: 1, RxDepth: 1, List: 1, CQMod: 1, Timeout: time.Second}
	for _, ask := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			v := server{report: func(*result) {}}
			v.memory.Store(maxServed - 1<<20)
			conn, end := net.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- v.client(t.Context(), end) }()
			client, want := cli.NewLines[message](conn), "no run for 1m0s"
			if ask {
				want = "the runs of others have 4293918720 of 4294967296"
				client.Send(message{Work: &w}, peerTimeout)
			}
			m, err := client.Receive()
			if err != nil || m.Fault == nil || !strings.Contains(m.Fault.Text, want) {
				t.Errorf("the client is told %+v, %v; want %q", m.Fault, err, want)
			}
			if err := <-ended; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the server has ended with %v; want %q", err, want)
			}
			if left := v.memory.Load(); left != maxServed-1<<20 {
				t.Errorf("%d bytes are in use afterwards", left)
			}
		})
	}
}

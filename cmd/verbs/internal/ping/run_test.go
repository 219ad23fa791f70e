//go:build linux

package ping

import (
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestPing runs a persistent server with two clients, of both address families. tests/interop runs
// them with rping.
func TestPing(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		serving, stop := context.WithCancel(t.Context())
		server := Cmd{Server: true, Persistent: true, Size: MinSize, Port: 7174}
		served := make(chan error, 1)
		go func() { served <- server.Run(serving) }()
		defer stop()
		v6 := labtest.Addr6Of(device)
		for addr, size := range map[string]int{labtest.AddrOf(device): MinSize, v6: maxSize} {
			client := Cmd{Client: true, Addr: addr, Port: 7174, Count: 5, Size: cli.Size(size), Check: true, JSON: true}
			var err error
			out := labtest.Output(t, func() {
				ctx := labtest.Within(t, 30*time.Second)
				for err = client.Run(ctx); errors.Is(err, syscall.ECONNREFUSED) && len(served) == 0; err = client.Run(ctx) {
				}
			})
			var r result
			labtest.Check(t, err, json.Unmarshal([]byte(out), &r))
			if r.Count != 5 || r.Size != size || !r.Validated || r.Device != device {
				t.Errorf("%+v", r)
			}
		}
		stop()
		labtest.Check(t, <-served)
	})
}

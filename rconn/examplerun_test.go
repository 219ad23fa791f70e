//go:build linux

package rconn_test

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestExamples runs the examples on each device. They exit if they fail.
func TestExamples(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		listen = labtest.AddrOf(device) + ":0"
		for name, e := range map[string]struct {
			run  func()
			want string
		}{
			"package":  {Example, "offered memory holds: written by the initiator\nread back: written by the initiator\n"},
			"Bind":     {ExampleBind, "given back: written by window\n"},
			"Counter":  {ExampleConn_Counter, "ticket 0\nticket 1\nticket 2\n"},
			"Announce": {ExampleConn_Announce, "region 7 of 1048576 bytes\nkept by the peer\nnothing goes beyond the end\n"},
		} {
			if (name == "Bind" || name == "Counter") && device == labtest.SIW {
				continue // it has neither windows nor atomics
			}
			if got := labtest.Output(t, e.run); got != e.want {
				t.Errorf("%s prints\n%s", name, got)
			}
		}
	})
}

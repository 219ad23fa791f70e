//go:build linux

package cm_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestExamples runs the examples in the lab, where they have a device. An example
// that fails ends the test.
func TestExamples(t *testing.T) {
	labtest.RequireBoth(t)
	var stop context.CancelFunc
	ctx, stop = context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	t.Run("DeviceAddrs", func(t *testing.T) {
		labtest.Each(t, func(t *testing.T, device string) {
			d := labtest.OpenDevice(t, device)
			dev = d.Device()
			want := map[string]string{
				labtest.RXE: "10.9.0.1:7471\n[fd00:9::1]:7471\n[fe80::",
				labtest.SIW: "10.9.1.1:7471\n[fd00:9:1::1]:7471\n[fe80::",
			}
			if got := labtest.Output(t, ExampleDeviceAddrs); !strings.HasPrefix(got, want[device]) {
				t.Errorf("prints\n%s", got)
			}
		})
	})
	t.Run("Dialer_Dial", func(t *testing.T) {
		if got := labtest.Output(t, ExampleDialer_Dial); got != "v1: rejected: speak v2\nv2: accepted: welcome\n" {
			t.Errorf("prints\n%s", got)
		}
	})
	t.Run("Loop", func(t *testing.T) {
		got := strings.Split(labtest.Output(t, ExampleChannel), "\n")
		slices.Sort(got)
		if want := []string{"", "client 0 has gone", "client 1 has gone", "client 2 has gone"}; !slices.Equal(got, want) {
			t.Errorf("prints\n%q", got)
		}
	})
	t.Run("Listen", func(t *testing.T) {
		lines, end := labtest.Lines(t)
		defer end()
		var served sync.WaitGroup
		served.Go(ExampleListen)
		for { // until the server listens; it also accepts this connection, which sends nothing
			if conn, err := cm.Dial(ctx, "10.9.0.1:7471"); err == nil {
				conn.Close()
				break
			}
		}
		ExampleDial()
		select {
		case line := <-lines:
			if line != "hello" {
				t.Errorf("prints %q", line)
			}
		case <-ctx.Done():
			t.Error("prints nothing")
		}
		stop()
		served.Wait()
	})
}

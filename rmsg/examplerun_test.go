//go:build linux

package rmsg_test

import (
	"context"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestExamples runs the examples on each device. They exit if they fail.
func TestExamples(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		addr = labtest.AddrOf(device) + ":7471"
		serve := func(t *testing.T, server func()) (c *rmsg.Conn, expect func(string), stop func()) {
			lines, end := labtest.Lines(t)
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(t.Context(), patience)
			var served sync.WaitGroup
			served.Go(server)
			l := run(t, rmsg.Options{})
			for { // until it listens
				var err error
				if c, err = (&rmsg.Dialer{Loop: l}).Dial(ctx, addr); err == nil {
					break
				}
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
			expect = func(want string) {
				t.Helper()
				select {
				case line := <-lines:
					if line != want {
						t.Errorf("prints %q, not %q", line, want)
					}
				case <-ctx.Done():
					t.Errorf("does not print %q", want)
				}
			}
			return c, expect, func() { cancel(); served.Wait(); end() }
		}
		t.Run("Callbacks", func(t *testing.T) {
			c, expect, stop := serve(t, ExampleCallbacks)
			defer stop()
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			expect("disconnected: EOF")
			ExampleDial()
			expect("hello")
			expect("disconnected: EOF")
			ExampleLoop_Dispatch()
			expect("established")
		})
		t.Run("Listener_Accept", func(t *testing.T) {
			c, expect, stop := serve(t, ExampleListener_Accept)
			defer stop()
			for _, text := range []string{"one", "two"} {
				if err := c.Send(ctx, []byte(text)); err != nil {
					t.Error(err)
				}
				expect(text)
			}
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	})
}

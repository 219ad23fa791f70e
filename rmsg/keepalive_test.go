//go:build linux

package rmsg_test

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestKeepAlive tests a connection whose peer drops everything without a word. On iWARP the peer's
// kernel would end the connection.
func TestKeepAlive(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		c, s := pair(t, device, rmsg.Options{KeepAlive: 20 * time.Millisecond, SendQueue: 1}, rmsg.Options{KeepAlive: -1})
		handled := c.Loop().Stats().Handled
		labtest.Until(t, "tests", func() bool { return c.Loop().Stats().Handled >= handled+100 }) // more than the queue takes
		if c.State() != rmsg.Established || s.State() != rmsg.Established {
			t.Fatalf("%v, %v", c.Err(), s.Err())
		}
		if c.Endpoint().PD.Context().Device().IWARP() {
			return
		}
		labtest.Check(t, s.Endpoint().QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
		select {
		case <-c.Done():
		case <-within(t).Done():
			t.Fatal("the end is not noticed")
		}
		if err := c.Err(); !errors.Is(err, verbs.ErrDisconnected) || !errors.Is(err, verbs.WCRetryExcErr) {
			t.Error(err)
		}
	})
}

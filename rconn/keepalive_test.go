//go:build linux

package rconn

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestKeepAlive tests a connection whose peer drops everything without a word, while nobody waits
// for completions. On iWARP the peer's kernel would end the connection.
func TestKeepAlive(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Options: cm.Options{KeepAlive: 20 * time.Millisecond, Cap: verbs.QPCap{MaxSendWR: 1}}}, Options{})
		labtest.Until(t, "tests", func() bool { return a.Stats().SendQueue.Completed >= 10 }) // more than the queue takes
		if s := a.Stats(); a.Err() != nil || s.Writes != (Traffic{}) || s.SendQueue.Ready > 0 || s.SendQueue.Failed > 0 {
			t.Errorf("%v, %+v", a.Err(), s)
		}
		if a.iwarp {
			return
		}
		check(t, b.Endpoint().QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
		select {
		case <-a.Done():
		case <-testContext(t).Done():
			t.Fatal("the end is not noticed")
		}
		if err := a.Err(); !errors.Is(err, verbs.ErrDisconnected) || !errors.Is(err, verbs.WCRetryExcErr) {
			t.Error(err)
		}
	})
}

// TestNoKeepAlive turns the test of a connection off, also for the options that Prepare sees.
func TestNoKeepAlive(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		seen := time.Duration(0)
		for _, prepare := range []func(cm.Route, *cm.Options) error{nil, func(_ cm.Route, o *cm.Options) error { seen = o.KeepAlive; return nil }} {
			a, _ := newPair(t, device, Options{Options: cm.Options{KeepAlive: -1, Prepare: prepare}}, Options{})
			if a.keepAlive != 0 {
				t.Errorf("with Prepare %v: a test every %v", prepare != nil, a.keepAlive)
			}
		}
		if seen >= 0 {
			t.Errorf("Prepare sees a KeepAlive of %v", seen)
		}
	})
}

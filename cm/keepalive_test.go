//go:build linux

package cm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestKeepAlive tests a connection whose peer does nothing, and then drops everything without a
// word, as if its machine had died. On iWARP the peer's kernel would end the connection.
func TestKeepAlive(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.Within(t, time.Minute)
		opt := cm.Options{KeepAlive: 20 * time.Millisecond, Cap: verbs.QPCap{MaxSendWR: 1}}
		client, server := labtest.Connect(ctx, t, labtest.AddrOf(device)+":0", opt, cm.Options{})
		defer server.Close()
		defer client.Close()
		for range 10 { // more than the queue takes
			if wc, err := client.SendCQ.Next(ctx); err != nil || wc.ID != cm.KeepAliveID || wc.Status != verbs.WCSuccess {
				t.Fatalf("%+v, %v", wc, err)
			}
		}
		// Nobody polls for longer than it would take to fill the CQ.
		select {
		case <-client.Done():
			t.Fatal(client.Err())
		case <-time.After(200 * time.Millisecond):
		}
		polling, stop := context.WithCancel(ctx)
		polled := make(chan struct{})
		go func() {
			defer close(polled)
			for polling.Err() == nil {
				client.SendCQ.Next(polling)
			}
		}()
		defer func() { stop(); <-polled }()
		if client.PD.Context().Device().IWARP() {
			return
		}
		labtest.Check(t, server.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
		select {
		case <-client.Done():
		case <-ctx.Done():
			t.Fatal("the end is not noticed")
		}
		if err := client.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Error(err)
		}
	})
}

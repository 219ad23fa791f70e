//go:build linux

package cm_test

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestLateReceive checks that a message waits for its receive without limit, and not
// only as long as a peer may be silent, which is about a second here.
func TestLateReceive(t *testing.T) {
	client, server := pair(t, labtest.Addr+":0", cm.Options{RetryCount: 1}, cm.Options{})
	if _, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	posted := make(chan error, 1)
	time.AfterFunc(3*time.Second, func() {
		_, err := server.QP.PostRecv(verbs.RecvWR{})
		posted <- err
	})
	var wc [1]verbs.WC
	if _, err := client.SendCQ.PollWait(ctx, wc[:]); err != nil || wc[0].Err() != nil {
		t.Errorf("%v, %v", err, wc[0].Err())
	}
	if err := <-posted; err != nil {
		t.Error(err)
	}
}

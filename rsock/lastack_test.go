//go:build linux

package rsock

import (
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLastAck tests that the side that has read DISCONNECT waits lastAckTimeout for the peer to
// end the connection: rxe may not have acknowledged it yet, and would not after the end.
func TestLastAck(t *testing.T) {
	labtest.RequireBoth(t)
	l := labtest.Must((&ListenConfig{Options: Options{Linger: time.Minute}}).Listen(t.Context(), "rdma", labtest.Addr+":0"))(t)
	defer l.Close()
	for _, peerCloses := range []bool{true, false} {
		peer := dialHostile(t, labtest.RoCE, l.Addr().String(), validHello)
		c := labtest.Must(l.Accept())(t)
		start := time.Now()
		peer.sendMessages(msgDisconnect)
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if peerCloses {
			time.AfterFunc(lastAckTimeout/5, peer.Disconnect)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		took := time.Since(start)
		if took < lastAckTimeout/5 || !peerCloses && took < lastAckTimeout {
			t.Errorf("the peer closes: %v; closed after %v", peerCloses, took)
		}
		t.Logf("the peer closes: %v; closed after %v", peerCloses, took)
	}
}

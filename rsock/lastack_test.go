package rsock

import (
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLastAck tests that the side that has read DISCONNECT waits lastAck for the peer to
// end the connection: rxe may not have acknowledged it yet, and would not after the end.
func TestLastAck(t *testing.T) {
	labtest.Require(t)
	l := labtest.Must(Listen("rdma", labtest.Addr+":0"))(t)
	defer l.Close()
	for _, leaves := range []bool{true, false} {
		peer := dialRogue(t, labtest.RXE, l.Addr().String(), sound)
		c := labtest.Must(l.Accept())(t)
		peer.say(msgDisconnect)
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if leaves {
			time.AfterFunc(lastAck/5, peer.Disconnect)
		}
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		took := time.Since(start)
		if took < lastAck/5 || !leaves && took < lastAck {
			t.Errorf("the peer leaves: %v; closed after %v", leaves, took)
		}
		t.Logf("the peer leaves: %v; closed after %v", leaves, took)
	}
}

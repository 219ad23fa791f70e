//go:build linux

package rsock

import (
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestLastAck tests that the side that has DISCONNECT waits lastAckTimeout for the peer to end the
// connection, also if only Close looks for it: rxe may not have acknowledged it yet, and would not
// after the end.
func TestLastAck(t *testing.T) {
	labtest.RequireBoth(t)
	l := labtest.Must((&ListenConfig{Options: Options{Linger: time.Minute}}).Listen(t.Context(), "rdma", labtest.Addr+":0"))(t)
	defer l.Close()
	for _, test := range []struct{ reads, peerCloses bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		peer := dialHostile(t, labtest.RoCE, l.Addr().String(), validHello)
		c := labtest.Must(l.Accept())(t)
		start := time.Now()
		peer.sendMessages(msgDisconnect)
		peer.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		if n, err := peer.SendCQ.PollWait(t.Context(), make([]verbs.WC, 1)); n != 1 || err != nil { // it has arrived
			t.Fatal(n, err)
		}
		if test.reads {
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Error(err)
			}
		}
		if test.peerCloses {
			time.AfterFunc(lastAckTimeout/5, peer.Disconnect)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		took := time.Since(start)
		if took < lastAckTimeout/5 || !test.peerCloses && took < lastAckTimeout {
			t.Errorf("%+v: closed after %v", test, took)
		}
		t.Logf("%+v: closed after %v", test, took)
	}
}

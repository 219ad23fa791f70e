//go:build linux

package rsock

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestCloseAfterPeer closes a side whose peer has just ended the connection. Only
// unacknowledged data without a SHUTDOWN after it is an error. Credits are not, as no
// call waits for them, nor is an unacknowledged SHUTDOWN with the data before it: rxe
// does not acknowledge a message if the program disconnects as soon as it receives it,
// and drops acknowledgements.
func TestCloseAfterPeer(t *testing.T) {
	labtest.RequireBoth(t)
	for name, c := range map[string]struct {
		end  bool                   // sent and acknowledged before
		late func(*Conn, time.Time) // what arrives after the peer has ended
		lost bool
	}{
		"credits": {true, func(a *Conn, _ time.Time) { a.control.post(opSGL|message(a.reader.ring.limit), false) }, false},
		"end":     {false, func(a *Conn, limit time.Time) { a.local = writeEnded; a.closer.send(msgShutdown, limit) }, false},
		"data": {false, func(a *Conn, limit time.Time) {
			a.writer.write([]byte("more"))
			a.local = writeEnded
			a.closer.send(msgShutdown, limit)
		}, false},
		"no end": {false, func(a *Conn, limit time.Time) { a.writer.write([]byte("more")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			labtest.Each(t, func(t *testing.T, device string) {
				if c.lost && labtest.IWARP(t, device) {
					return // requests complete when TCP has them
				}
				closeAfterPeer(t, device, c.end, c.late, c.lost)
			})
		})
	}
}

func closeAfterPeer(t *testing.T, device string, end bool, late func(*Conn, time.Time), lost bool) {
	l := labtest.Must(Listen("rdma", labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	a := labtest.Must(Dial("rdma", l.Addr().String()))(t).(*Conn)
	defer a.Close()
	b := labtest.Must(l.Accept())(t).(*Conn)
	defer b.Close()
	limit := time.Now().Add(60 * time.Second)
	a.SetDeadline(limit)
	b.SetDeadline(limit)
	const text = "all there is"
	if _, err := a.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if end {
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(b, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v", got, err)
	}
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	labtest.Until(t, "the end, and all acknowledgements", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.progress()
		return a.peer == writeEnded && a.isAcked()
	})
	a.mu.Lock()
	// b's device acknowledges nothing any more. a learns of the end only after late: a Write that
	// sees it posts nothing and fails.
	err := b.ep.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	if err == nil {
		late(a, limit)
		b.ep.Disconnect()
	}
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); errors.Is(err, syscall.ECONNRESET) != lost || err != nil && !lost {
		t.Errorf("close: %v", err)
	}
}

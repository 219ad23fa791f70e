package harness

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestKill kills the peer's process.
func TestKill(t *testing.T) {
	runFault(t, fault{title: "the peer's process is killed", quick: "rconn rsock", run: func(e *env) {
		c, l := e.startLoad()
		start := time.Now()
		c.kill()
		e.expectPeerKilled(l, start)
	}})
}

// peerGoneErrors returns the errors of a load whose peer has gone, possibly with its memory before
// its connections.
func (e *env) peerGoneErrors(more ...error) wantErrors {
	ended := append(more, verbs.ErrDisconnected, verbs.WCRemAccessErr, verbs.WCRemOpErr)
	if labtest.IsERDMA(e.device) { // which has no number for WCRemOpErr
		ended = append(ended, verbs.WCGeneralErr)
	}
	return wantErrors{"cm": ended, "rconn": ended, "rmsg": append(ended, rmsg.ErrUnreadable), "rsock": {unix.ECONNRESET}}
}

// expectPeerKilled checks that a load whose peer was killed ends as documented, and adds
// a row.
func (e *env) expectPeerKilled(l *load, start time.Time) {
	e.Helper()
	<-l.done
	saw := e.expect(e.peerGoneErrors(), l.err)
	e.close(l.s)
	e.finish(e.serve(), saw, l.endTime.Sub(start))
}

package harness

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
)

// TestKill kills the peer's process.
func TestKill(t *testing.T) {
	each(t, fault{title: "the peer's process is killed", quick: "rconn rsock", run: func(e *env) {
		c, l := e.under()
		start := time.Now()
		c.kill()
		e.bereft(l, start)
	}})
}

// left returns the errors of a load whose peer has gone, possibly with its memory before
// its connections.
func left(more ...error) wants {
	ended := append(more, verbs.ErrDisconnected, verbs.WCRemAccessErr, verbs.WCRemOpErr)
	return wants{"cm": ended, "rconn": ended, "rmsg": append(ended, rmsg.ErrUnreadable), "rsock": {unix.ECONNRESET}}
}

// bereft checks that a load whose peer was killed ends as documented, and adds
// a row.
func (e *env) bereft(l *load, start time.Time) {
	e.Helper()
	<-l.done
	saw := e.expect(left(), l.err)
	e.close(l.s)
	e.ends(e.serve(), saw, l.when.Sub(start))
}

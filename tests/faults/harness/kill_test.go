package harness

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/msg"
	"github.com/goverbs/verbs/uverbs"
)

// TestKill kills the peer's process.
func TestKill(t *testing.T) {
	each(t, fault{title: "the peer's process is killed", quick: "conn rsock", run: func(e *env) {
		c, l := e.under()
		start := time.Now()
		c.kill()
		e.bereft(l, start)
	}})
}

// bereft insists that a load whose peer was killed ends as documented, and adds
// a row.
func (e *env) bereft(l *load, start time.Time) {
	e.Helper()
	<-l.done
	// The kernel may take the memory of the dead before its connections.
	ended := []error{cm.ErrDisconnected, uverbs.WCRemAccessErr, uverbs.WCRemOpErr}
	saw := e.expect(wants{
		"verbs": ended,
		"conn":  ended,
		"msg":   append(ended, msg.ErrUnreadable),
		"rsock": {unix.ECONNRESET},
	}, l.err)
	e.close(l.s)
	next := e.serve()
	again := e.again(next)
	next.kill()
	e.row(saw, l.when.Sub(start), again)
}

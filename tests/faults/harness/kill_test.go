package harness

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/msg"
)

// TestKill kills the peer's process.
func TestKill(t *testing.T) {
	each(t, fault{title: "the peer's process is killed", quick: "conn rsock", run: func(e *env) {
		c, l := e.under()
		start := time.Now()
		c.kill()
		<-l.done
		saw := e.expect(wants{
			"verbs": {cm.ErrDisconnected},
			"conn":  {cm.ErrDisconnected},
			"msg":   {cm.ErrDisconnected, msg.ErrUnreadable},
			"rsock": {unix.ECONNRESET},
		}, l.err)
		e.close(l.s)
		next := e.serve()
		again := e.again(next)
		next.kill()
		e.row(saw, l.when.Sub(start), again)
	}})
}

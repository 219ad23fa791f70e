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
	each(t, fault{"the peer's process is killed", "verbs conn msg rsock", func(e *env) {
		c := e.serve()
		l := newLoad(e.dial(c))
		if err := l.more(5); err != nil {
			e.Fatal(err)
		}
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

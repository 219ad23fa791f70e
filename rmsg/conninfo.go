package rmsg

import (
	"fmt"
	"time"

	"github.com/goverbs/verbs/cm"
)

// Conns describes the accepted connections that have not ended.
func (ln *Listener) Conns() []cm.ConnInfo { return ln.origin.infos() }

// Conns describes the connections that have not ended, including those that connect.
func (d *Dialer) Conns() []cm.ConnInfo { return d.origin.infos() }

func (o *origin) infos() (all []cm.ConnInfo) {
	for _, c := range o.conns.Open() {
		all = append(all, c.info())
	}
	return all
}

func (c *Conn) info() cm.ConnInfo {
	i := cm.ConnInfo{Remote: c.addr}
	if e := c.Endpoint(); e != nil {
		i = e.Info()
	}
	i.Layer, i.Stats = "rmsg", c.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	i.State = c.state.String()
	wait := func(since time.Time, format string, args ...any) {
		i.Waits = append(i.Waits, cm.Wait{For: fmt.Sprintf(format, args...), Since: since})
	}
	if q := &c.out; q.stalled {
		wait(q.stalledAt, "credits of the peer, for %d messages", q.queue.Len())
	}
	if n := c.out.inFlight.Len(); n > 0 {
		wait(time.Time{}, "completions of %d messages", n)
	}
	if n := c.out.announced.Len(); n > 0 {
		wait(time.Time{}, "the peer to read %d announced messages", n)
	}
	return i
}

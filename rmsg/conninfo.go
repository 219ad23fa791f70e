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
	if e := c.Endpoint(); e != nil {
		return e.Info()
	}
	i := cm.ConnInfo{Remote: c.addr}
	c.describe(&i)
	return i
}

// describe is for [cm.Endpoint.Describe].
func (c *Conn) describe(i *cm.ConnInfo) {
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
		wait(c.out.movedAt, "completions of %d messages", n)
	}
	if n := c.out.announced.Len(); n > 0 {
		wait(c.out.movedAt, "the peer to read %d announced messages", n)
	}
	if b := c.in.began; len(b) > 0 {
		i.Waits = append(i.Waits, cm.Wait{For: fmt.Sprintf("Recv: messages of the peer, by %d calls", len(b)), Since: b[0], Idle: true})
	}
	if began := c.l.counts.handling(); !began.IsZero() && time.Since(began) > longDispatch {
		wait(began, "its loop, which is in a callback")
	} else if !c.l.counts.running.Load() {
		wait(time.Time{}, "Run or Dispatch of its loop, which is not called")
	}
}

// longDispatch is longer than it takes to handle events if no callback waits for something.
const longDispatch = 100 * time.Millisecond

// handling returns since when events are handled, or zero if they are not.
func (n *counts) handling() time.Time {
	if began := n.began.Load(); began != 0 {
		return time.Unix(0, began)
	}
	return time.Time{}
}

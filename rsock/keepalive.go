package rsock

import (
	"time"

	"github.com/goverbs/verbs"
)

// SetKeepAlive turns the test of an idle connection on, every 15 s, or off.
func (c *Conn) SetKeepAlive(on bool) error {
	if on {
		return c.SetKeepAlivePeriod(defaultKeepAlive)
	}
	return c.SetKeepAlivePeriod(0)
}

// SetKeepAlivePeriod sets how often the connection is tested, never if d is
// zero: a peer whose program or machine is gone without a word is only missed
// when something is sent to it. The test is an RDMA WRITE of nothing, of which
// the peer's program sees nothing. On RoCE the device gives the peer up after
// some seconds of retries. On iWARP TCP gives up after minutes.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	if err := c.enter(); err != nil {
		return c.wrap("set", err)
	}
	c.keepAlive(d)
	return c.wrap("set", c.leave())
}

// SetNoDelay does nothing: nothing is ever delayed.
func (c *Conn) SetNoDelay(bool) error { return nil }

// keepAlive is SetKeepAlivePeriod with mu held.
func (c *Conn) keepAlive(d time.Duration) {
	c.period = max(d, 0)
	switch {
	case c.probe != nil && d <= 0:
		c.probe.Stop()
	case c.probe != nil:
		c.probe.Reset(d)
	case d > 0:
		c.probe = time.AfterFunc(d, c.test)
	}
}

// test is what the timer calls.
func (c *Conn) test() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reap()
	if c.closed || c.period == 0 || c.err != nil || c.gone {
		return
	}
	if c.ctl.used == 0 { // or else a test is under way already
		c.ctl.wrs[0] = verbs.SendWR{ID: ctrlID | 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		c.ctl.used++
		if _, err := c.qp.PostSend(c.ctl.wrs[:1]...); err != nil {
			c.die(&resetError{err})
			return
		}
	}
	c.probe.Reset(c.period)
}

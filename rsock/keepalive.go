package rsock

import (
	"time"

	"github.com/goverbs/verbs"
)

// SetKeepAlive enables the test of an idle connection, every 15 s, or disables it. See
// [Conn.SetKeepAlivePeriod].
func (c *Conn) SetKeepAlive(on bool) error {
	if on {
		return c.SetKeepAlivePeriod(defaultKeepAlive)
	}
	return c.SetKeepAlivePeriod(0)
}

// SetKeepAlivePeriod sets the interval at which the connection is tested; 0 disables the
// test. Without it, a peer whose machine has failed is noticed only when something is
// sent to it. The test is an RDMA WRITE of no bytes, which the peer's program does not
// see. On RoCE the device gives up after some seconds of retries, on iWARP TCP does after
// minutes.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	if err := c.enter(); err != nil {
		return c.wrap("set", err)
	}
	c.keepAlive(d)
	return c.wrap("set", c.leave())
}

// SetNoDelay has no effect: data is never delayed.
func (c *Conn) SetNoDelay(bool) error {
	if err := c.enter(); err != nil {
		return c.wrap("set", err)
	}
	return c.wrap("set", c.leave())
}

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

// test is called by the timer.
func (c *Conn) test() {
	if c.enter() != nil {
		return
	}
	defer c.leave()
	c.reap()
	if c.period == 0 || c.err != nil || c.gone {
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

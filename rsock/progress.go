package rsock

import "errors"

// progress handles received messages and grants the peer space and credits. As for all
// functions of this file, the caller holds mu.
func (c *Conn) progress() {
	c.reader.progress()
	if c.writer.targets.unconfirmed != (sge{}) {
		// A descriptor may have come without a message of its own, or have been half written when
		// last looked at.
		c.writer.targets.accept()
	}
	c.control.grant()
	for _, w := range c.waiters() {
		if w.ready != nil && w.ready(c) {
			w.cond.Signal()
		}
	}
}

func (c *Conn) handleMessage(m message) error {
	switch {
	case m.op() == opData:
		return c.reader.arrived(m.data())
	case m.op() == opSGL:
		if err := c.writer.credits.grant(uint16(m)); err != nil {
			return err
		}
		c.writer.targets.accept()
	case m == msgDisconnect:
		// The peer neither writes nor reads any more, so nothing may be sent, and nothing will
		// come.
		c.peer = bothEnded
		if c.iwarp {
			c.disconnect() // the peer's Close waits for this
		}
	case m == msgShutdown:
		c.peer = writeEnded
	case m == msgKeepAlive:
	default:
		return protocolError("message %#x", uint32(m))
	}
	return nil
}

var errEnded = errors.New("the connection has ended")

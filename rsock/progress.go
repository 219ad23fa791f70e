package rsock

import (
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/goverbs/verbs"
)

// progress takes up what has come in, and grants the peer what it may send. Like
// all of this file it runs with mu held.
func (c *Conn) progress() {
	for {
		n := c.recvCQ.Poll(c.wcs[:])
		good := 0
		for i := range c.wcs[:n] {
			if c.receive(&c.wcs[i]) {
				good++
			}
		}
		if c.err == nil && !c.gone && good > 0 {
			if err := c.postRecvs(good); err != nil {
				c.die(&resetError{err})
			}
		}
		if n < len(c.wcs) {
			break
		}
	}
	if c.out.doubt != (sge{}) {
		c.refresh()
	}
	c.grant()
	for _, w := range [...]*waiter{&c.rd, &c.wr, &c.cl} {
		if w.following && w.ready(c) {
			w.wake()
		}
	}
}

// postRecvs posts n receives, which are at most as many as the array holds.
func (c *Conn) postRecvs(n int) error {
	for i := range n {
		c.recvs[i].ID = uint64(c.in.slot)
		if c.iwarp {
			c.recvSGEs[i].Addr = c.tx.sge.Addr + uint64(c.opt.WriteBuffer+4*c.in.slot)
		}
		if c.in.slot++; c.in.slot == c.in.posted {
			c.in.slot = 0
		}
	}
	_, err := c.qp.PostRecv(c.recvs[:n]...)
	return err
}

// receive takes up a receive's completion and reports whether it was a message.
func (c *Conn) receive(wc *verbs.WC) bool {
	switch {
	case c.gone || c.broken:
		return false
	case wc.Status == verbs.WCFlushErr:
		c.ended()
		return false
	case wc.Status != verbs.WCSuccess:
		c.die(&resetError{wc.Err()})
		return false
	}
	var m message
	switch {
	case !c.iwarp && wc.Flags&verbs.WCWithImm != 0:
		m = message(wc.Imm())
	case c.iwarp && wc.ByteLen == 4:
		m = message(c.peer.order().Uint32(c.in.slots[4*wc.ID:]))
	default:
		c.violated(breach("a message of %d bytes", wc.ByteLen))
		return false
	}
	if !c.in.heard {
		c.in.heard = true
		c.qp.HoldSends(zeroTime)
	}
	if err := c.handle(m); err != nil {
		c.violated(err)
		return false
	}
	if c.gone && c.iwarp {
		c.ep.Disconnect() // for which the peer's Close waits
	}
	return true
}

// violated ends a connection with a peer that cannot be trusted any more.
func (c *Conn) violated(err error) {
	c.broken = true
	c.die(err)
}

func (c *Conn) handle(m message) error {
	switch {
	case m.op() == opData:
		return c.arrived(m.data())
	case m.op() == opSGL:
		o := &c.out
		limit := uint16(m)
		if limit-o.seq > o.window {
			return breach("credits up to message %d, of which %d were sent and %d may be under way", limit, o.seq, o.window)
		}
		o.limit = limit
		c.refresh()
	case m == msgDisconnect:
		c.eof, c.gone = true, true
	case m == msgShutdown:
		c.eof = true
	case m == msgKeepAlive:
	default:
		return breach("message %#x", uint32(m))
	}
	return nil
}

// arrived takes up that n bytes are in the ring.
func (c *Conn) arrived(n int) error {
	in := &c.in
	switch {
	case n == 0 || in.received+uint64(n) > in.offered:
		return breach("%d bytes where %d were offered", n, in.offered-in.received)
	case in.seq == in.limit:
		return breach("more messages than it has credits for")
	case c.eof:
		return breach("data after the end")
	}
	in.received += uint64(n)
	in.messages++
	in.seq++
	c.discard()
	return nil
}

// discard drops what is not read after CloseRead.
func (c *Conn) discard() {
	if c.readEnd && !c.in.reading {
		c.in.consumed = c.in.received
	}
}

// refresh looks for a descriptor that the peer has written. Messages do not say
// whether one came along, and a later one may be half written already: one that
// is not what peers with two halves offer is believed if it stays as it is.
func (c *Conn) refresh() {
	o := &c.out
	for o.target[o.next].length == 0 {
		raw := o.table[o.next*sgeSize:][:sgeSize]
		t := getSGE(raw, binary.NativeEndian)
		if t.length == 0 {
			return
		}
		if t != o.expect[o.next] && t != o.doubt {
			o.doubt = t
			return
		}
		o.doubt = sge{}
		o.target[o.next] = t
		clear(raw)
		o.next ^= 1
	}
}

// reap takes up completions of sends.
func (c *Conn) reap() {
	o := &c.out
	var failed error
	for n := len(c.reaped); n == len(c.reaped); {
		n = c.sendCQ.Poll(c.reaped[:])
		for i := range c.reaped[:n] {
			wc := &c.reaped[i]
			switch {
			case wc.Status == verbs.WCFlushErr:
				failed = cmp.Or(failed, errEnded)
			case wc.Status != verbs.WCSuccess:
				if failed == nil || failed == errEnded {
					failed = wc.Err()
				}
			case wc.ID&ctrlID != 0:
				c.ctl.used -= int(wc.ID &^ ctrlID)
			default:
				o.done += (uint32(wc.ID>>32) - o.done) & markMask
				o.freed += uint64(uint32(wc.ID) - uint32(o.freed))
			}
		}
	}
	if failed == errEnded {
		failed = cmp.Or(c.ep.Err(), failed)
	}
	if failed != nil {
		c.die(&resetError{failed})
	}
}

var errEnded = errors.New("the connection has ended")

// ended finds out why receives are flushed.
func (c *Conn) ended() {
	if c.err != nil || c.gone {
		return
	}
	c.reap() // the request that failed says more
	c.die(&resetError{cmp.Or(c.ep.Err(), errEnded)})
}

// die ends the connection. Calls to come fail with err, if it is the first.
func (c *Conn) die(err error) {
	if c.err != nil {
		return
	}
	c.err, c.unlogged = err, c.log != nil
	c.ep.Disconnect()
	c.wakeAll()
}

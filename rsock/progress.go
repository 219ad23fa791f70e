package rsock

import (
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/goverbs/verbs"
)

// progress handles received messages and grants the peer space and credits. As for all
// functions of this file, the caller holds mu.
func (c *Conn) progress() {
	for n := len(c.recvWCs); n == len(c.recvWCs); {
		n = c.recvCQ.Poll(c.recvWCs[:])
		taken := 0
		for i := range c.recvWCs[:n] {
			if c.ignoresMessages() {
				break
			}
			if c.handleRecv(&c.recvWCs[i]) {
				taken++
			}
		}
		if taken > 0 && !c.isOver() {
			if err := c.postRecvs(taken); err != nil {
				c.fail(&resetError{err})
			}
		}
	}
	if c.sendRing.unconfirmed != (sge{}) {
		c.acceptOffers()
	}
	c.grant()
	for _, w := range c.waiters() {
		if w.ready != nil && w.ready(c) {
			w.cond.Signal()
		}
	}
}

// postRecvs posts n receives. n is at most the length of q.wrs.
func (c *Conn) postRecvs(n int) error {
	q := &c.recvQueue
	for i := range n {
		q.wrs[i].ID = uint64(q.next)
		if c.iwarp {
			q.sgl[i].Addr = c.sendRing.sge.Addr + uint64(c.opt.WriteBuffer+messageSize*q.next)
		}
		q.next = (q.next + 1) % q.size
	}
	_, err := c.qp.PostRecv(q.wrs[:n]...)
	return err
}

// handleRecv handles the completion of a receive and reports whether it has a message.
func (c *Conn) handleRecv(wc *verbs.WC) bool {
	if wc.Status == verbs.WCFlushErr {
		if !c.isOver() {
			c.reap() // the error of a failed request is more precise
			c.fail(&resetError{cmp.Or(c.ep.Err(), errEnded)})
		}
		return false
	}
	if wc.Status != verbs.WCSuccess {
		c.fail(&resetError{wc.Err()})
		return false
	}
	var m message
	var err error
	switch {
	case !c.iwarp && wc.Flags&verbs.WCWithImm != 0:
		m = message(wc.Imm())
	case c.iwarp && wc.ByteLen == messageSize:
		m = message(c.hello.order().Uint32(c.recvQueue.buf[messageSize*wc.ID:]))
	default:
		err = protocolError("a message of %d bytes", wc.ByteLen)
	}
	if err == nil {
		c.canGrant = true
		err = c.handleMessage(m)
	}
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

// handleMessage processes a message.
func (c *Conn) handleMessage(m message) error {
	switch {
	case m.op() == opData:
		return c.dataArrived(m.data())
	case m.op() == opSGL:
		s := &c.sendRing
		limit := uint16(m)
		if limit-s.seq > s.window {
			return protocolError("credits up to message %d, when %d were sent and %d may be under way", limit, s.seq, s.window)
		}
		s.limit = limit
		c.acceptOffers()
	case m == msgDisconnect:
		c.peer = bothEnded
		if c.iwarp {
			c.ep.Disconnect() // the peer's Close waits for this
		}
	case m == msgShutdown:
		c.peer = writeEnded
	case m == msgKeepAlive:
	default:
		return protocolError("message %#x", uint32(m))
	}
	return nil
}

// dataArrived accounts for n received bytes.
func (c *Conn) dataArrived(n int) error {
	r := &c.recvRing
	switch {
	case n == 0 || r.received+uint64(n) > r.offered:
		return protocolError("%d bytes where %d were offered", n, r.offered-r.received)
	case r.seq == r.limit:
		return protocolError("more messages than it has credits for")
	case !c.peer.canWrite():
		return protocolError("data after the end")
	}
	r.received += uint64(n)
	r.messages++
	r.seq++
	c.discard()
	return nil
}

// acceptOffers accepts the descriptors that the peer has written. Messages do not indicate
// whether one was written, and the next may be half written already: an unexpected one,
// from a peer whose ring is not in two halves, is accepted when it reads the same twice.
func (c *Conn) acceptOffers() {
	s := &c.sendRing
	for s.target[s.next].length == 0 {
		raw := s.table[s.next*sgeSize:][:sgeSize]
		t := getSGE(raw, binary.NativeEndian)
		if t.length == 0 {
			return
		}
		if t != s.expect[s.next] && t != s.unconfirmed {
			s.unconfirmed = t
			return
		}
		s.unconfirmed = sge{}
		s.target[s.next] = t
		clear(raw)
		s.next ^= 1
	}
}

var errEnded = errors.New("the connection has ended")

// fail ends the connection. Later calls fail with the first err.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err, c.unlogged = err, true
	c.ep.Disconnect()
	c.group.SignalAll()
}

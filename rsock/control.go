package rsock

import (
	"cmp"
	"math"
	"net"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/option"
)

// control is the state of control messages: credits, offers of space, SHUTDOWN, DISCONNECT and
// keepalives. They have their own share of the send queue, as RS_QP_CTRL_SIZE in C: if data could
// fill it, two sides that both wait for credits would never send them. They take no credit, for the
// same reason; the receives that they need are spare ones. Each message is signaled, and its ID is
// ctrlID plus its number of requests.
type control struct {
	c        *Conn
	mayGrant bool // grant may send: a message has arrived, or need not arrive first
	requests requests
	used     int
	full     bool          // a message waits for used to decrease
	offer    sge           // half 0 of the receive ring
	half     int           // which half is offered next
	next     uint32        // which of the peer's descriptors is written next
	pinged   uint64        // bytes sent before the last keepalive, if that is known
	idle     time.Duration // the last interval of keepalives that was not 0
	sge      [sgeSize]byte
}

const ctrlID = 1 << 63

// grant offers the peer space or credits once half the ring, or half the receives, can be offered
// (C: rs_give_credits): few messages, as TCP updates its window, but before the peer has used up
// the other half. The caller holds mu.
func (t *control) grant() {
	c := t.c
	r := &c.reader.ring
	for t.mayGrant && !c.isOver() && !c.isClosed() && c.peer.canWrite() {
		// offered counts bytes of both halves since the start. If the offered and unread bytes fit
		// in one half, the other has been read and can be offered again.
		space := r.offered-r.consumed <= uint64(t.offer.length)
		// Credits are told as the sequence number up to which the peer may send, not as an
		// increment, so a message that is merged with a later one loses nothing.
		limit := r.seq + uint16(c.opt.RecvQueue)
		if !space && int(limit-r.limit) < c.opt.RecvQueue/2 {
			return
		}
		cost := 1
		if space && c.iwarp { // the descriptor's WRITE, and the SEND that announces it
			cost = 2
		}
		if !t.has(cost) {
			return
		}
		r.limit = limit
		if space {
			c.reader.offering()
		}
		t.post(opSGL|message(limit), space)
	}
}

// has reports whether n control requests may be posted.
func (t *control) has(n int) bool {
	if t.used+n > ctrlQueue {
		t.c.writer.reap()
	}
	t.full = t.used+n > ctrlQueue
	return !t.full
}

// post posts a message, and with offer the descriptor of the next half of the receive ring: a WRITE
// to the peer's table, with the message as its immediate, so that the descriptor is there when the
// message is. It is in the peer's byte order, as the peer reads its memory.
func (t *control) post(m message, offer bool) {
	c := t.c
	w := &t.requests.wrs[0]
	*w = verbs.SendWR{}
	if offer {
		half := t.offer
		half.addr += uint64(t.half) * uint64(half.length)
		// The halves take turns, as they do at the peer.
		t.half ^= 1
		c.reader.ring.offered += uint64(half.length)
		half.put(t.sge[:], c.hello.order())
		w.Inline = t.sge[:]
		// The entry is free: the peer has used up the descriptor that was there, or it would not
		// have filled the half.
		w.RemoteAddr, w.RKey = c.hello.sgl.addr+uint64(t.next)*sgeSize, c.hello.sgl.key
		t.next = (t.next + 1) % c.hello.sgl.length
	}
	t.postSignaled(t.requests.fill(m, c.iwarp))
}

// postSignaled posts control requests. The completion of the last one covers all.
func (t *control) postSignaled(wrs []verbs.SendWR) {
	for i := range wrs {
		wrs[i].ID = ctrlID
	}
	last := &wrs[len(wrs)-1]
	last.Flags, last.ID = verbs.SendSignaled, ctrlID|uint64(len(wrs))
	t.used += len(wrs)
	if _, err := t.c.qp.PostSend(wrs...); err != nil {
		t.c.fail(&resetError{err})
	}
}

// SetKeepAlive enables the test of an idle connection, every 15 s, or disables it. See
// [Conn.SetKeepAlivePeriod].
func (c *Conn) SetKeepAlive(on bool) error {
	if on {
		return c.SetKeepAlivePeriod(option.DefaultKeepAlive)
	}
	return c.SetKeepAlivePeriod(0)
}

// SetKeepAlivePeriod sets the interval at which the connection is tested; 0 disables the test.
// Without it, only sending reveals that the peer's machine has failed. The test is an RDMA WRITE of
// no bytes, which the peer's program does not see. On RoCE the device stops retrying after some 4
// s, or up to 35 s if the peer has asked for more time when it connected; on iWARP TCP does after
// minutes.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.set(func() { c.control.startProbes(d) })
}

// startProbes starts to send keepalives every d, or stops if d is 0.
func (t *control) startProbes(d time.Duration) {
	if d > 0 {
		t.idle = d
	}
	bridge.KeepAlive(t.c.ep, d, t.probe)
}

// probe sends a keepalive, or looks for its failure. The WRITE of nothing needs no memory and no
// receive at the peer, but its device acknowledges it, or the connection fails.
func (t *control) probe(post bool) error {
	c := t.c
	if c.enter(nil) != nil {
		return nil
	}
	defer c.leave(nil)
	c.writer.reap()
	// A request in flight tests the connection as well: it completes, or the connection fails.
	switch {
	case c.isOver() || t.used != 0:
	case post:
		t.pinged = math.MaxUint64
		if c.writer.mu.TryLock() { // else a Write may not have posted yet what it has sent
			c.writer.mu.Unlock()
			t.pinged = c.writer.sent
		}
		t.ping()
	case t.pinged == c.writer.sent: // the test has completed, and all data, which was before it
		c.writer.shrink()
	}
	return nil
}

func (t *control) ping() {
	t.requests.wrs[0] = verbs.SendWR{Opcode: verbs.OpRDMAWrite}
	t.postSignaled(t.requests.wrs[:1])
}

// SetKeepAliveConfig is [Conn.SetKeepAlivePeriod] for programs that configure TCP: cfg.Idle is the
// interval, 15 s if it is 0, and the one before if it is negative. The device chooses Interval and Count,
// see SetKeepAlivePeriod.
func (c *Conn) SetKeepAliveConfig(cfg net.KeepAliveConfig) error {
	return c.set(func() {
		d := time.Duration(0)
		switch {
		case !cfg.Enable:
		case cfg.Idle < 0:
			d = cmp.Or(c.control.idle, option.DefaultKeepAlive)
		default:
			d = cmp.Or(cfg.Idle, option.DefaultKeepAlive)
		}
		c.control.startProbes(d)
	})
}

// SetReadBuffer and SetWriteBuffer have no effect: the rings are made with the connection, see
// [Options]. Nor has SetNoDelay: data is never delayed.
func (c *Conn) SetReadBuffer(int) error  { return c.set(func() {}) }
func (c *Conn) SetWriteBuffer(int) error { return c.set(func() {}) }
func (c *Conn) SetNoDelay(bool) error    { return c.set(func() {}) }

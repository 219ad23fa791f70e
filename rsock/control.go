package rsock

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
)

var zeroTime time.Time

// control is what control messages need. They have send requests of their own,
// each of which asks for its completion: ID is ctrlID and how many.
type control struct {
	ring  sge // what we offer: its half 0
	wrs   [2]verbs.SendWR
	sge   [sgeSize]byte
	msg   [4]byte
	used  int
	short bool // something waits for used to go down
	next  int  // which of the peer's descriptors we write next
	half  int  // which half we offer next
}

const ctrlID = 1 << 63

func (t *control) start(c *Conn) {
	t.next, t.half = 1, 1
	t.wrs[1] = verbs.SendWR{Opcode: verbs.OpSend, Inline: t.msg[:], Flags: verbs.SendSignaled}
}

// grant offers the peer space and credits if that is due: half the ring, or half the
// receives. (rs_give_credits in C's.) It runs with mu held.
func (c *Conn) grant() {
	in := &c.in
	for c.err == nil && !c.gone && !c.eof && !c.closed && in.heard {
		space := uint64(c.opt.ReadBuffer)-(in.offered-in.consumed) >= uint64(c.opt.ReadBuffer/2)
		limit := in.seq + uint16(c.opt.RecvQueue)
		if !space && int(limit-in.limit) < c.opt.RecvQueue/2 {
			return
		}
		cost := 1
		if space && c.iwarp {
			cost = 2
		}
		if !c.ctrlRoom(cost) {
			return
		}
		var offer *sge
		if space {
			half := c.ctl.ring
			half.addr += uint64(c.ctl.half) * uint64(half.length)
			offer = &half
			c.ctl.half ^= 1
			in.offered += uint64(half.length)
		}
		in.limit = limit
		c.postCtrl(opSGL|message(limit), offer)
	}
}

// ctrlRoom reports whether n control requests may be posted.
func (c *Conn) ctrlRoom(n int) bool {
	if c.ctl.used+n > ctrlQueue {
		c.reap()
	}
	c.ctl.short = c.ctl.used+n > ctrlQueue
	return !c.ctl.short
}

// postCtrl posts a message, along with a descriptor if there is one.
func (c *Conn) postCtrl(m message, offer *sge) {
	t := &c.ctl
	w := &t.wrs[0]
	*w = verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: uint32(m), Flags: verbs.SendSignaled}
	if offer != nil {
		offer.put(t.sge[:], c.peer.order())
		w.Inline = t.sge[:]
		w.RemoteAddr = c.peer.sgl.addr + uint64(t.next)*sgeSize
		w.RKey = c.peer.sgl.key
		if t.next++; t.next == int(c.peer.sgl.length) {
			t.next = 0
		}
	}
	wrs := t.wrs[:1]
	if c.iwarp {
		binary.NativeEndian.PutUint32(t.msg[:], uint32(m))
		w.Opcode, w.Flags = verbs.OpRDMAWrite, 0
		wrs = t.wrs[:]
		if offer == nil {
			wrs = t.wrs[1:]
		}
	}
	wrs[len(wrs)-1].ID = ctrlID | uint64(len(wrs))
	t.used += len(wrs)
	if _, err := c.qp.PostSend(wrs...); err != nil {
		c.die(&resetError{err})
	}
}

package rsock

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/goverbs/verbs"
)

// outbound is the send ring and what the peer has offered of its own. Counts of
// bytes are since the beginning, as those of requests are, modulo 2^31.
type outbound struct {
	ring     []byte
	inline   []byte // a copy of what goes into the request itself
	table    []byte // the descriptors that the peer writes
	head     uint64 // written to
	sent     uint64 // bytes of messages
	messages uint64
	freed    uint64 // up to here the device is done
	room     int    // that a Write waits for

	cost      uint32 // requests for a message
	posted    uint32
	done      uint32
	slots     uint32 // that may be under way
	quiet     uint32 // those posted after the last that completes with an event
	quietData int    // and their bytes
	short     bool   // a call waits for completions

	seq    uint16 // messages sent
	limit  uint16 // up to which they may go
	window uint16 // how many may be under way
	spare  uint16 // credits not to be used

	target [sgeCount]sge // where to write to
	expect [sgeCount]sge
	doubt  sge
	cur    int // the target in use
	next   int // the one that the peer writes next
}

const markMask = 1<<31 - 1

func (o *outbound) start(c *Conn) {
	b := c.peer.buffer
	o.expect = [...]sge{b, {b.addr + uint64(b.length), b.key, b.length}}
	o.target[0] = b
	o.next = 1
	o.limit, o.window = c.peer.credits, c.peer.credits
	// C has no receives in reserve for control messages. One that finds none is
	// sent again on RoCE, after 0.66 s, and ends the connection on iWARP.
	o.spare = min(8, o.window/4)
	o.slots, o.cost = uint32(c.opt.SendQueue-ctrlQueue), 1
	if c.iwarp {
		o.cost = 2
	}
	for i := range c.tx.wrs {
		c.tx.wrs[i] = verbs.SendWR{}
	}
	c.tx.wrs[0].Opcode = verbs.OpRDMAWriteImm
	if c.iwarp {
		c.tx.wrs[0].Opcode = verbs.OpRDMAWrite
		c.tx.wrs[1] = verbs.SendWR{Opcode: verbs.OpSend, Inline: c.tx.msg[:]}
	}
}

// poster posts data.
type poster struct {
	sge      verbs.SGE // of the whole send ring
	wrs      [2]verbs.SendWR
	sgl      [1]verbs.SGE
	msg      [4]byte
	finished bool // nothing more may be posted
}

// shot is a message to be posted, of n bytes.
type shot struct {
	addr     uint64
	key      uint32
	n        int
	mark     uint64 // what is done when it completes
	signaled bool
}

// Write writes all of p, and waits for the peer to read if there is no room. It returns
// when the last of p has been passed to the device. Errors match net.ErrClosed after
// Close, EPIPE after CloseWrite, ECONNRESET if the peer reads no more or the connection
// broke, and ETIMEDOUT if the peer does not answer.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.enter(); err != nil {
		return 0, c.wrap("write", err)
	}
	defer c.leave()
	n, err := c.write(p)
	return n, c.wrap("write", err)
}

func (c *Conn) write(p []byte) (n int, err error) {
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	if c.wr.expired() {
		return 0, os.ErrDeadlineExceeded
	}
	for n < len(p) && err == nil {
		m, rest := 0, p[n:]
		if len(rest) <= c.opt.Inline {
			// Posting holds locks and takes credits, and must not fault.
			m = c.copy(c.out.inline, rest)
			m, err = c.send(c.out.inline[:m], true)
		} else {
			var room []byte
			if room, err = c.reserve(len(rest)); err != nil {
				break
			}
			m = c.copy(room, rest)
			m, err = c.send(room[:m], false)
		}
		n += m
	}
	return n, err
}

// writeErr is why nothing can be written.
func (c *Conn) writeErr() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeEnd:
		return syscall.EPIPE
	case c.err != nil:
		return c.err
	case c.gone:
		return syscall.ECONNRESET
	}
	return nil
}

// chunk is the most that goes in one message: enough of them that copying and
// sending overlap.
func (c *Conn) chunk() int { return min(len(c.out.ring)/4, maxChunk) }

// reserve waits for room in the send ring for some of n bytes.
func (c *Conn) reserve(n int) ([]byte, error) {
	o := &c.out
	o.room = min(n, lowWater, len(o.ring)/4)
	if !c.roomy() {
		if err := c.stall(&c.waits.queue, (*Conn).roomy); err != nil {
			return nil, err
		}
	}
	if err := c.writeErr(); err != nil {
		return nil, err
	}
	at := int(o.head % uint64(len(o.ring)))
	return o.ring[at:][:min(n, c.chunk(), len(o.ring)-at, len(o.ring)-int(o.head-o.freed))], nil
}

// roomy reports whether there is room for what a Write waits for, in one piece.
func (c *Conn) roomy() bool {
	o := &c.out
	for range 2 {
		free := len(o.ring) - int(o.head-o.freed)
		tail := len(o.ring) - int(o.head%uint64(len(o.ring)))
		switch {
		case free >= o.room && tail >= o.room:
			o.short = false
			return true
		case tail < o.room && free >= tail+o.room:
			o.head += uint64(tail) // freed with what follows
			o.quietData += tail
			o.short = false
			return true
		}
		c.reap()
	}
	o.short = true
	return c.writeErr() != nil
}

// sendable reports whether a message can be posted.
func (c *Conn) sendable() bool {
	o := &c.out
	o.short = false
	if o.limit-o.seq <= o.spare || o.target[o.cur].length == 0 {
		return c.writeErr() != nil
	}
	if o.free() < o.cost {
		c.reap()
	}
	o.short = o.free() < o.cost
	return !o.short || c.writeErr() != nil
}

func (o *outbound) free() uint32 { return o.slots - (o.posted-o.done)&markMask }

// send posts data, which is inline or at the head of the send ring, in as many
// messages as the peer's ring takes.
func (c *Conn) send(data []byte, inline bool) (n int, err error) {
	for n < len(data) {
		if !c.sendable() {
			on := &c.waits.peer
			if c.out.short {
				on = &c.waits.queue
			}
			if err := c.stall(on, (*Conn).sendable); err != nil {
				return n, err
			}
		}
		if err := c.writeErr(); err != nil {
			return n, err
		}
		part := data[n:]
		part = part[:min(uint64(len(part)), uint64(c.out.target[c.out.cur].length))]
		at := int(c.out.head % uint64(len(c.out.ring)))
		s := c.aim(len(part), inline)
		c.mu.Unlock()
		if inline {
			err = c.post(s, part, 0)
		} else {
			err = c.post(s, nil, at)
		}
		c.mu.Lock()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = c.writeErr()
			} else {
				c.die(&resetError{err})
				err = c.err
			}
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// aim takes what a message of n bytes needs.
func (c *Conn) aim(n int, inline bool) shot {
	o := &c.out
	t := &o.target[o.cur]
	s := shot{addr: t.addr, key: t.key, n: n}
	t.addr += uint64(n)
	if t.length -= uint32(n); t.length == 0 {
		o.cur ^= 1
	}
	o.seq++
	o.sent += uint64(n)
	o.messages++
	o.posted += o.cost
	o.quiet += o.cost
	if !inline {
		o.head += uint64(n)
		o.quietData += n
	}
	covered := o.posted
	switch {
	case c.iwarp && !inline:
		// siw sends larger unsignaled requests straight from the ring, and
		// TCP may look there again after their completion: have it copy.
		covered--
		s.signaled = true
		o.quiet = 1
	case o.quiet >= o.slots/4 || o.quietData >= len(o.ring)/4:
		s.signaled = true
		o.quiet = 0
	}
	if s.signaled {
		o.quietData = 0
	}
	s.mark = uint64(covered&markMask)<<32 | uint64(uint32(o.head))
	return s
}

// post posts a message. mu is not held: the device may take its time.
func (c *Conn) post(s shot, inline []byte, at int) error {
	c.pmu.Lock()
	defer c.pmu.Unlock()
	if c.tx.finished {
		return net.ErrClosed
	}
	t := &c.tx
	w := &t.wrs[0]
	w.RemoteAddr, w.RKey = s.addr, s.key
	w.ID, w.Flags, w.Inline, w.SGL = s.mark, 0, inline, nil
	if inline == nil {
		t.sgl[0] = verbs.SGE{Addr: t.sge.Addr + uint64(at), Length: uint32(s.n), LKey: t.sge.LKey}
		w.SGL = t.sgl[:]
	}
	m := opData | message(s.n)
	wrs := t.wrs[:1]
	last := w
	if c.iwarp {
		wrs = t.wrs[:]
		if inline != nil {
			last = &t.wrs[1]
		}
		t.wrs[1].ID, t.wrs[1].Flags = s.mark, 0
		binary.NativeEndian.PutUint32(t.msg[:], uint32(m))
	} else {
		w.Imm = uint32(m)
	}
	if s.signaled {
		last.Flags = verbs.SendSignaled
	}
	_, err := c.qp.PostSend(wrs...)
	w.Inline = nil
	return err
}

// ReadFrom writes what r returns until r ends, and returns the number of bytes written.
// No lock is held while r reads, so other calls proceed meanwhile, and their data may
// come in between, as with [net.TCPConn].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{c}, r, make([]byte, maxChunk))
	return n, c.wrap("readfrom", err)
}

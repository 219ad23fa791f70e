package rsock

import (
	"cmp"
	"encoding/binary"
	"io"
	"os"

	"github.com/goverbs/verbs"
)

// sendRing is the memory that the device sends from, and the state of the peer's ring.
// Bytes are counted since the start, and requests, modulo 2^31.
type sendRing struct {
	buf      []byte
	sge      verbs.SGE // of all of buf
	inline   []byte    // a copy of inline data
	head     uint64    // end of the written data
	freed    uint64    // end of the data that the device is done with
	room     int       // bytes that a Write waits for
	sent     uint64    // bytes posted in messages
	messages uint64
	requests requests // guarded by writeMu

	cost           uint32 // requests per message
	slots          uint32 // requests that may be in flight
	posted         uint32
	done           uint32
	unsignaled     uint32 // requests posted after the last signaled one
	unsignaledData int    // bytes of the ring of these
	full           bool   // a Write waits for completions

	seq      uint16 // messages sent
	limit    uint16 // the seq up to which there are credits
	window   uint16 // messages that may be in flight
	reserved uint16 // credits that are never used

	table       []byte        // memory for the descriptors, which the peer writes
	target      [sgeCount]sge // the parts of the peer's ring to write to
	expect      [sgeCount]sge
	unconfirmed sge
	cur         int // the target in use
	next        int // the target that the peer offers next
}

const markMask = 1<<31 - 1

func (s *sendRing) start(c *Conn) {
	b := c.hello.buffer
	s.expect = [...]sge{b, {b.addr + uint64(b.length), b.key, b.length}}
	s.target[0] = b
	s.next = 1
	s.limit, s.window = c.hello.credits, c.hello.credits
	// C has no spare receives for control messages. A message that finds none is sent
	// again after 0.66 s on RoCE, and ends the connection on iWARP.
	s.reserved = min(8, s.window/4)
	s.slots, s.cost = uint32(c.opt.SendQueue-ctrlQueue), 1
	if c.iwarp {
		s.cost = 2
	}
}

// requests are the requests of a message: an RDMA WRITE with the message as its
// immediate. iWARP has no immediates: there the message is a SEND, after the RDMA WRITE
// if that has data.
type requests struct {
	wrs [2]verbs.SendWR
	sgl [1]verbs.SGE
	msg [4]byte
}

// fill returns the requests of m. The first is complete except for its opcode and
// immediate. Fields are set one by one, as a SendWR is large.
func (r *requests) fill(m message, iwarp bool) []verbs.SendWR {
	w, msg := &r.wrs[0], &r.wrs[1]
	if !iwarp {
		w.Opcode, w.Imm = verbs.OpRDMAWriteImm, uint32(m)
		return r.wrs[:1]
	}
	w.Opcode = verbs.OpRDMAWrite
	binary.NativeEndian.PutUint32(r.msg[:], uint32(m))
	msg.Opcode, msg.Inline, msg.Flags = verbs.OpSend, r.msg[:], 0
	if len(w.SGL)+len(w.Inline) == 0 {
		return r.wrs[1:]
	}
	return r.wrs[:]
}

// Write writes all of p, and waits for the peer to read if there is no room. It returns
// when the last of p has been passed to the device. Errors match net.ErrClosed after
// Close, EPIPE after CloseWrite, ECONNRESET if the peer no longer reads or the connection
// broke, and ETIMEDOUT if the peer does not answer.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.enter(&c.writeMu); err != nil {
		return 0, c.wrap("write", err)
	}
	defer c.leave(&c.writeMu)
	n, err := c.write(p)
	return n, c.wrap("write", err)
}

func (c *Conn) write(p []byte) (n int, err error) {
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	if c.writer.expired() {
		return 0, os.ErrDeadlineExceeded
	}
	for n < len(p) && err == nil {
		rest, inline := p[n:], len(p)-n <= c.opt.Inline
		buf := c.sendRing.inline // p may fault, which posting must not: it holds locks and uses credits
		if !inline {
			if buf, err = c.reserve(len(rest)); err != nil {
				break
			}
		}
		m := c.copy(buf, rest)
		m, err = c.send(buf[:m], inline)
		n += m
	}
	return n, err
}

// chunk returns the largest size of a message. The ring holds several, so copying and
// sending overlap.
func (c *Conn) chunk() int { return min(len(c.sendRing.buf)/4, maxChunk) }

// reserve waits for room in the send ring and returns it, n bytes at most.
func (c *Conn) reserve(n int) ([]byte, error) {
	s := &c.sendRing
	s.room = min(n, lowWater, len(s.buf)/4)
	if err := c.waitToWrite((*Conn).hasRoom); err != nil {
		return nil, err
	}
	at, free := s.space()
	return s.buf[at:][:min(n, c.chunk(), len(s.buf)-at, free)], nil
}

// space returns the position of the head in buf, and how many bytes are free.
func (s *sendRing) space() (at, free int) {
	return int(s.head % uint64(len(s.buf))), len(s.buf) - int(s.head-s.freed)
}

// fits reports whether s.room bytes are free in one piece. It moves the head to the start
// of buf if they are there.
func (s *sendRing) fits() bool {
	at, free := s.space()
	tail := len(s.buf) - at
	if tail >= s.room {
		return free >= s.room
	}
	if free < tail+s.room {
		return false
	}
	s.head += uint64(tail) // freed with what follows
	s.unsignaledData += tail
	return true
}

// hasRoom reports whether a Write need not wait: the send ring has room, or never will.
func (c *Conn) hasRoom() bool {
	s := &c.sendRing
	if s.full = !s.fits(); s.full {
		c.reap()
		s.full = !s.fits()
	}
	return !s.full || c.writeErr() != nil
}

// canSend reports whether a Write need not wait: it can post a message, or never can.
func (c *Conn) canSend() bool {
	s := &c.sendRing
	s.full = false
	if s.limit-s.seq <= s.reserved || s.target[s.cur].length == 0 {
		return c.writeErr() != nil
	}
	if s.free() < s.cost {
		c.reap()
	}
	s.full = s.free() < s.cost
	return !s.full || c.writeErr() != nil
}

func (s *sendRing) free() uint32 { return s.slots - (s.posted-s.done)&markMask }

// send posts data, which is inline or at the head of the send ring, in as many
// messages as the peer's ring takes.
func (c *Conn) send(data []byte, inline bool) (n int, err error) {
	for n < len(data) {
		if err := c.waitToWrite((*Conn).canSend); err != nil {
			return n, err
		}
		wrs, m := c.prepare(data[n:], inline)
		c.mu.Unlock() // posting may take long
		_, err := c.qp.PostSend(wrs...)
		c.mu.Lock()
		if err != nil {
			c.fail(&resetError{err})
			return n, c.err
		}
		n += m
	}
	return n, nil
}

// prepare makes a message of the first n bytes of data, as many as the target takes.
func (c *Conn) prepare(data []byte, inline bool) (wrs []verbs.SendWR, n int) {
	s := &c.sendRing
	t := &s.target[s.cur]
	n = int(min(uint64(len(data)), uint64(t.length)))
	r := &s.requests
	w := &r.wrs[0]
	w.RemoteAddr, w.RKey, w.Flags = t.addr, t.key, 0
	if inline {
		w.Inline, w.SGL = data[:n], nil
	} else {
		at, _ := s.space()
		r.sgl[0] = verbs.SGE{Addr: s.sge.Addr + uint64(at), Length: uint32(n), LKey: s.sge.LKey}
		w.Inline, w.SGL = nil, r.sgl[:]
		s.head += uint64(n)
		s.unsignaledData += n
	}
	t.addr += uint64(n)
	if t.length -= uint32(n); t.length == 0 {
		s.cur ^= 1
	}
	s.seq++
	s.sent += uint64(n)
	s.messages++
	s.posted += s.cost
	s.unsignaled += s.cost
	wrs = r.fill(opData|message(n), c.iwarp)
	last, covered := &wrs[len(wrs)-1], s.posted
	switch {
	case c.iwarp && !inline:
		// siw sends larger unsignaled requests directly from the ring, and TCP
		// may read that again after their completion. It copies signaled ones.
		last, covered = &wrs[0], s.posted-1
		s.unsignaled = 1
	case s.unsignaled >= s.slots/4 || s.unsignaledData >= len(s.buf)/4:
		s.unsignaled = 0
	default:
		return wrs, n
	}
	s.unsignaledData = 0
	last.Flags = verbs.SendSignaled
	last.ID = uint64(covered&markMask)<<32 | uint64(uint32(s.head))
	return wrs, n
}

// reap polls the completions of sends.
func (c *Conn) reap() {
	s := &c.sendRing
	var failed error
	for n := len(c.sendWCs); n == len(c.sendWCs); {
		n = c.sendCQ.Poll(c.sendWCs[:])
		for i := range c.sendWCs[:n] {
			wc := &c.sendWCs[i]
			switch {
			case wc.Status == verbs.WCFlushErr:
				failed = cmp.Or(failed, errEnded)
			case wc.Status != verbs.WCSuccess:
				if failed == nil || failed == errEnded {
					failed = wc.Err()
				}
			case wc.ID&ctrlID != 0:
				c.control.used -= int(wc.ID &^ ctrlID)
			default:
				s.done += (uint32(wc.ID>>32) - s.done) & markMask
				s.freed += uint64(uint32(wc.ID) - uint32(s.freed))
			}
		}
	}
	if failed == errEnded {
		failed = cmp.Or(c.ep.Err(), failed)
	}
	if failed != nil {
		c.fail(&resetError{failed})
	}
}

// ReadFrom writes what r returns until io.EOF, and returns the number of bytes written.
// No lock is held while r reads, so other calls proceed and their data may be
// interleaved, as with [net.TCPConn].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{c}, r, make([]byte, maxChunk))
	return n, c.wrap("readfrom", err)
}

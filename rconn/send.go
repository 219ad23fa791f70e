package rconn

import (
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// op is a request of the Conn's own. Its owner waits until it is done.
type op struct {
	busy bool // posted, and its owner has not seen that it is done
	done bool
	wc   verbs.WC
}

// entry is a posted request until its completion, or a later one's, is polled.
type entry struct {
	id   uint64
	live bool
	told bool // its completion goes to the user
	sure bool // it was signaled
	read bool
	// empty is a READ of no bytes that is done by one of one.
	empty bool
	n     int // regions held
	op    *op
}

// sender keeps the books of the send queue. At the latest every half queue a
// request is signaled, whether the user wants it or not, so what is under way is
// known.
type sender struct {
	box
	entries []entry // by sequence number, which is the WR's ID
	regions []*LocalRegion
	mask    uint64
	depth   uint64 // requests under way
	tail    uint64 // the oldest under way
	head    uint64 // the next to be
	told    int    // under way and told
	quiet   int    // posted since the last that was signaled

	wr  [1]verbs.SendWR
	sge []verbs.SGE
	msg [AdvertSize]byte

	spare *LocalRegion // for what nobody wants
	one   [1]Span
}

func (s *sender) init(c *Conn, opt Options) {
	s.box.init(c, c.ep.SendCQ, s.done)
	s.depth = uint64(opt.SendQueue)
	s.entries = make([]entry, roundUp(opt.SendQueue))
	s.mask = uint64(len(s.entries) - 1)
	s.regions = make([]*LocalRegion, len(s.entries)*c.sges)
	s.sge = make([]verbs.SGE, c.sges)
}

// roundUp returns the least power of two that is not below n.
func roundUp(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// PostSend sends the spans as one message, for which the peer must have posted
// a receive. On iWARP one that finds none breaks the connection. All posting
// returns at once, with [verbs.ErrQueueFull] if there is no room; id comes back in the
// completion's ID.
func (c *Conn) PostSend(id uint64, flags verbs.SendFlags, spans ...Span) error {
	return c.post("post SEND to", request{id: id, opcode: verbs.OpSend, flags: flags}, spans)
}

// PostWrite writes the spans one after the other to the peer's memory. What
// completion means is told at [Conn.Fence].
func (c *Conn) PostWrite(id uint64, flags verbs.SendFlags, to Target, spans ...Span) error {
	return c.post("post WRITE to", request{id: id, opcode: verbs.OpRDMAWrite, flags: flags, target: to}, spans)
}

// PostRead fills the spans from the peer's memory. On iWARP, whose READ has but
// one place to go to, it takes a request for each span.
func (c *Conn) PostRead(id uint64, flags verbs.SendFlags, from Target, spans ...Span) error {
	return c.post("post READ from", request{id: id, opcode: verbs.OpRDMARead, flags: flags, target: from}, spans)
}

type request struct {
	id        uint64
	opcode    verbs.Opcode
	flags     verbs.SendFlags
	target    Target
	op        *op // of the Conn's own
	advert    uint32
	isAdvert  bool
	add, swap uint64
}

// told says whether the request's completion goes to the user.
func (r *request) told() bool { return r.op == nil && r.flags&verbs.SendSignaled != 0 }

// needs is what a request needs of the spans, and of the target.
func (r *request) needs() (local, remote verbs.Access) {
	switch r.opcode {
	case verbs.OpRDMAWrite:
		return 0, verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		return verbs.AccessLocalWrite, verbs.AccessRemoteRead
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return verbs.AccessLocalWrite, verbs.AccessRemoteAtomic
	}
	return 0, 0
}

func (c *Conn) post(what string, r request, spans []Span) error {
	s := &c.send
	s.mu.Lock()
	err := s.post(&r, spans)
	s.mu.Unlock()
	if err != nil {
		return c.fail(what, err)
	}
	return nil
}

func (s *sender) post(r *request, spans []Span) error {
	c := s.c
	if err := c.unfit(); err != nil {
		return err
	}
	local, remote := r.needs()
	total, err := c.check(spans, local)
	if err != nil {
		return err
	}
	if remote != 0 {
		if err := r.target.check(total, remote); err != nil {
			return err
		}
	}
	wr := &s.wr[0]
	*wr = verbs.SendWR{
		Opcode: r.opcode, RemoteAddr: r.target.addr(), RKey: r.target.Region.Key,
		CompareAdd: r.add, Swap: r.swap,
	}
	if r.isAdvert {
		wr.Inline, err = AppendAdvert(s.msg[:0], r.advert, spans[0])
		if err != nil {
			return err
		}
	}
	if c.iwarp && r.opcode == verbs.OpRDMARead {
		return s.postReads(r, spans, total)
	}
	if err := s.room(1, r); err != nil {
		return err
	}
	return s.put(r, spans, r.flags)
}

// postReads posts a READ on iWARP, one for each span that is not empty. If all
// are, it is one of a byte to nowhere: siw's responder, when it is busy, answers
// an empty READ with as many bytes as some READ before, which breaks the
// connection (siw_activate_tx leaves the old length, Linux 6.1 to 7.2).
func (s *sender) postReads(r *request, spans []Span, total int) error {
	n, last := 0, 0
	for i := range spans {
		if spans[i].Len > 0 {
			n, last = n+1, i
		}
	}
	wr := &s.wr[0]
	if total == 0 {
		at := r.target
		if at.Off = min(at.Off, at.Region.Len-1); at.Off < 0 {
			return fmt.Errorf("nothing can be read of %v: %w", at.Region, verbs.ErrRange)
		}
		if s.spare == nil {
			spare, err := s.c.Alloc(1, LocalWrite)
			if err != nil {
				return err
			}
			s.spare = spare
		}
		n, wr.RemoteAddr = 1, at.addr()
		spans = append(s.one[:0], s.spare.All())
		last = 0
	}
	if err := s.room(n, r); err != nil {
		return err
	}
	for i := range spans[:last+1] {
		if spans[i].Len == 0 {
			continue
		}
		flags := r.flags
		if i < last {
			flags &^= verbs.SendSignaled
		}
		if err := s.put(r, spans[i:i+1], flags); err != nil {
			return err
		}
		s.entries[(s.head-1)&s.mask].empty = total == 0
		wr.RemoteAddr += uint64(spans[i].Len)
	}
	return nil
}

// check checks the spans of a request and adds up their lengths.
func (c *Conn) check(spans []Span, need verbs.Access) (total int, err error) {
	if len(spans) > c.sges {
		return 0, fmt.Errorf("%w: %d of at most %d", verbs.ErrTooManySGEs, len(spans), c.sges)
	}
	for i := range spans {
		if err := spans[i].check(c.ep.PD, need); err != nil {
			return 0, err
		}
		total += spans[i].Len
	}
	return total, nil
}

// room says whether n more requests can be posted.
func (s *sender) room(n int, r *request) error {
	if s.head-s.tail+uint64(n) > s.depth {
		s.collect()
	}
	switch {
	case uint64(n) > s.depth:
		return fmt.Errorf("%d requests in a queue for %d: %w", n, s.depth, verbs.ErrRange)
	case s.head-s.tail+uint64(n) > s.depth:
		return verbs.ErrQueueFull
	case r.told() && uint64(s.told+s.ready.len()) >= s.depth:
		return fmt.Errorf("%w of completions that were not taken", verbs.ErrQueueFull)
	}
	return nil
}

// put posts what is in wr. There is room.
func (s *sender) put(r *request, spans []Span, flags verbs.SendFlags) error {
	slot := s.head & s.mask
	e := &s.entries[slot]
	*e = entry{id: r.id, op: r.op, told: flags&verbs.SendSignaled != 0 && r.op == nil, read: r.opcode == verbs.OpRDMARead}
	wr := &s.wr[0]
	wr.ID, wr.Flags = s.head, flags
	s.quiet++
	// On iWARP READs are overtaken, so a later completion tells nothing of them.
	if s.quiet >= int(s.depth+1)/2 || s.c.iwarp && e.read || r.op != nil {
		wr.Flags |= verbs.SendSignaled
	}
	e.sure = wr.Flags&verbs.SendSignaled != 0
	if wr.Inline == nil {
		held := s.regions[int(slot)*s.c.sges:]
		n, err := s.c.gather(s.sge, held, spans)
		if err != nil {
			return err
		}
		wr.SGL, e.n = s.sge[:n], n
	}
	if _, err := s.c.ep.QP.PostSend(s.wr[:]...); err != nil {
		s.drop(slot)
		return err
	}
	e.live = true
	s.head++
	if e.sure {
		s.quiet = 0
		s.coming++
	}
	if e.told {
		s.told++
	}
	return nil
}

// gather makes an SGL of the spans and holds their regions. Empty spans are left
// out.
func (c *Conn) gather(sgl []verbs.SGE, held []*LocalRegion, spans []Span) (n int, err error) {
	for i := range spans {
		s := &spans[i]
		if s.Len == 0 {
			continue
		}
		if err := s.Region.hold(); err != nil {
			for _, r := range held[:n] {
				r.drop()
			}
			return 0, err
		}
		held[n] = s.Region
		sgl[n] = s.Region.mr.SGE(s.Off, s.Len)
		n++
	}
	return n, nil
}

// drop lets go of the regions of the entry in a slot.
func (s *sender) drop(slot uint64) {
	e := &s.entries[slot]
	first := int(slot) * s.c.sges
	for i, r := range s.regions[first : first+e.n] {
		r.drop()
		s.regions[first+i] = nil
	}
	e.n, e.live, e.op = 0, false, nil
}

func (s *sender) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.entries {
		s.drop(uint64(slot))
	}
	s.tail = s.head
	s.ready = fifo[verbs.WC]{}
}

// done sorts a completion.
func (s *sender) done(wc *verbs.WC) {
	e := s.entries[wc.ID&s.mask]
	if !e.live || wc.ID < s.tail || wc.ID >= s.head {
		return
	}
	if wc.Status != verbs.WCSuccess {
		s.c.fails(cm.SendError(wc))
	}
	if e.sure {
		s.coming--
	}
	if e.told {
		s.told--
	}
	// What was posted before is done as well, but for READs on iWARP.
	for seq := s.tail; seq <= wc.ID; seq++ {
		if old := &s.entries[seq&s.mask]; old.live && (seq == wc.ID || !(s.c.iwarp && old.read)) {
			s.drop(seq & s.mask)
		}
	}
	for s.tail < s.head && !s.entries[s.tail&s.mask].live {
		s.tail++
	}
	if e.empty && wc.Status == verbs.WCSuccess {
		wc.ByteLen = 0
	}
	switch {
	case e.op != nil:
		e.op.wc, e.op.done = *wc, true
	case e.told || wc.Status != verbs.WCSuccess:
		wc.ID = e.id
		s.ready.push(*wc)
	}
}

package rconn

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// op is a request of a helper of the Conn, which waits until it is done.
type op struct {
	busy bool // posted, and the helper has not handled its completion
	done bool
	wc   verbs.WC
}

// sendEntry is a posted request until its completion, or a later one, is polled.
type sendEntry struct {
	id       uint64
	live     bool
	forUser  bool // the user gets its completion
	signaled bool
	read     bool
	// empty is a READ of no bytes that was posted as one of one byte.
	empty bool
	n     int // regions held
	op    *op
}

// sender accounts for the send queue. It signals at least one request in every half
// queue, even if the user does not, to learn which have completed.
type sender struct {
	completionQueue
	entries     []sendEntry // by sequence number, which is the WR's ID
	regions     []*LocalRegion
	mask        uint64
	depth       uint64 // limit of the requests in flight
	tail        uint64 // the oldest in flight
	head        uint64 // the next to be posted
	userPending int    // requests in flight whose completions go to the user
	unsignaled  int    // requests posted since the last signaled one

	sends, writes, reads, atomics Traffic
	others, adverts               uint64

	wr  [1]verbs.SendWR
	sge []verbs.SGE
	msg [AdvertSize]byte

	scratch     *LocalRegion // for a byte that is read and not used
	scratchSpan [1]Span
}

func (s *sender) init(c *Conn, opt Options) {
	s.completionQueue.init(c, c.ep.SendCQ, s.handleCompletion)
	s.depth = uint64(opt.SendQueue)
	s.entries = make([]sendEntry, roundUp(opt.SendQueue))
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

// request is a send request to post.
type request struct {
	wr verbs.SendWR // its SGL is made of the spans, unless the caller set it
	// at, if targeted, is the peer's memory. It is checked, and replaces the wr's
	// RemoteAddr and RKey.
	at       Target
	targeted bool
	op       *op  // of a helper
	advert   bool // send an advertisement of the only span, with the tag in wr.Imm
	bind     bool // the spans are for the window, not for the SGL
}

// forUser reports whether the user gets the request's completion.
func (r *request) forUser() bool { return r.op == nil && r.wr.Flags&verbs.SendSignaled != 0 }

// isRead reports whether o is a READ, which iWARP completes out of order.
func isRead(o verbs.Opcode) bool { return o == verbs.OpRDMARead || o == verbs.OpRDMAReadInv }

// requiredAccess returns the access to its spans and to the target that a request needs,
// and the number of bytes of the target that it uses if it has n bytes of local memory.
func requiredAccess(wr *verbs.SendWR, n int) (local, remote verbs.Access, size int) {
	switch wr.Opcode {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteImm, verbs.OpAtomicWrite:
		return 0, verbs.AccessRemoteWrite, n
	case verbs.OpRDMARead, verbs.OpRDMAReadInv:
		return verbs.AccessLocalWrite, verbs.AccessRemoteRead, n
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return verbs.AccessLocalWrite, verbs.AccessRemoteAtomic, n
	case verbs.OpBindMW:
		return verbs.AccessMWBind, 0, 0
	case verbs.OpFlush:
		if wr.Flush.Type&verbs.FlushGlobal != 0 {
			remote |= verbs.AccessFlushGlobal
		}
		if wr.Flush.Type&verbs.FlushPersistent != 0 {
			remote |= verbs.AccessFlushPersistent
		}
		return 0, remote, int(wr.Flush.Length)
	}
	return 0, 0, 0
}

// alignment returns the alignment that the target of an operation needs.
func alignment(o verbs.Opcode) uint64 {
	switch o {
	case verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
		return 8
	}
	return 1
}

func (c *Conn) post(r *request, spans []Span) error {
	if err := c.send.lockAndPost(r, spans); err != nil {
		return c.fail("post "+r.wr.Opcode.String()+" to", err)
	}
	return nil
}

func (s *sender) lockAndPost(r *request, spans []Span) error {
	s.mu.Lock()
	defer s.mu.Unlock() // reading unmapped inline data panics
	err := s.post(r, spans)
	if errors.Is(err, verbs.ErrQueueFull) {
		s.stalls++
	}
	return err
}

func (s *sender) post(r *request, spans []Span) error {
	c := s.c
	if err := c.checkUsable(); err != nil {
		return err
	}
	total := len(r.wr.Inline)
	for _, b := range r.wr.InlineList {
		total += len(b)
	}
	for _, e := range r.wr.SGL {
		total += int(e.Length)
	}
	local, _, _ := requiredAccess(&r.wr, 0)
	n, err := c.check(spans, local)
	if err != nil {
		return err
	}
	if len(spans) > 0 && len(r.wr.SGL) > 0 {
		return fmt.Errorf("spans together with an SGL: %w", verbs.ErrRange)
	}
	total += n
	wr := &s.wr[0]
	*wr = r.wr
	defer func() { wr.SGL, wr.Inline, wr.InlineList, wr.Bind = nil, nil, nil, nil }() // they belong to the caller
	if r.targeted {
		if err := r.at.checkFor(&r.wr, total); err != nil {
			return err
		}
		wr.RemoteAddr, wr.RKey = r.at.addr(), r.at.Region.Key
	}
	if r.advert {
		if wr.Inline, err = AppendAdvert(s.msg[:0], wr.Imm, spans[0]); err != nil {
			return err
		}
		total, spans = AdvertSize, nil
	}
	if c.iwarp && wr.Opcode == verbs.OpRDMARead && len(wr.SGL)+len(wr.Inline)+len(wr.InlineList) == 0 {
		return s.postReads(r, spans, total)
	}
	if err := s.checkRoom(1, r); err != nil {
		return err
	}
	if err := s.postOne(r, spans, r.wr.Flags, total); err != nil {
		return err
	}
	if r.advert {
		s.adverts++
	}
	return nil
}

// postReads posts a READ on iWARP, one request for each span that is not empty. If all
// are empty, it reads one byte and ignores it: siw's responder, when busy, answers an
// empty READ with the length of an earlier one, which breaks the connection
// (siw_activate_tx leaves the old length, Linux 6.1 to 7.2).
func (s *sender) postReads(r *request, spans []Span, total int) error {
	n, last := 0, 0
	for i := range spans {
		if spans[i].Len > 0 {
			n, last = n+1, i
		}
	}
	wr := &s.wr[0]
	if total == 0 {
		if r.targeted {
			at := r.at
			if at.Off = min(at.Off, at.Region.Len-1); at.Off < 0 {
				return fmt.Errorf("nothing can be read of %v: %w", at.Region, verbs.ErrRange)
			}
			wr.RemoteAddr = at.addr()
		}
		if s.scratch == nil {
			spare, err := s.c.Alloc(1, LocalWrite)
			if err != nil {
				return err
			}
			s.scratch = spare
		}
		s.scratchSpan[0] = s.scratch.All()
		n, spans, last = 1, s.scratchSpan[:], 0
	}
	if err := s.checkRoom(n, r); err != nil {
		return err
	}
	for i := range spans[:last+1] {
		if spans[i].Len == 0 {
			continue
		}
		flags, size := r.wr.Flags, min(spans[i].Len, total)
		if i < last {
			flags &^= verbs.SendSignaled
		}
		if err := s.postOne(r, spans[i:i+1], flags, size); err != nil {
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

// checkRoom returns an error if there is no room for n more requests.
func (s *sender) checkRoom(n int, r *request) error {
	if s.head-s.tail+uint64(n) > s.depth {
		s.poll()
	}
	switch {
	case uint64(n) > s.depth:
		return fmt.Errorf("%d requests in a queue for %d: %w", n, s.depth, verbs.ErrRange)
	case s.head-s.tail+uint64(n) > s.depth:
		return verbs.ErrQueueFull
	case r.forUser() && uint64(s.userPending+s.ready.len()) >= s.depth:
		return fmt.Errorf("%w of completions that were not taken", verbs.ErrQueueFull)
	}
	return nil
}

// postOne posts s.wr with size bytes. The caller has checked that there is room.
func (s *sender) postOne(r *request, spans []Span, flags verbs.SendFlags, size int) error {
	slot := s.head & s.mask
	e := &s.entries[slot]
	wr := &s.wr[0]
	*e = sendEntry{id: r.wr.ID, op: r.op, forUser: flags&verbs.SendSignaled != 0 && r.op == nil, read: isRead(wr.Opcode)}
	wr.ID, wr.Flags = s.head, flags
	s.unsignaled++
	// On iWARP requests overtake READs, so a later completion does not prove them. On mlx5 binds
	// take the room of several requests, so that less than half a queue may fit.
	if s.unsignaled >= int(s.depth+1)/2 || s.c.iwarp && e.read || r.op != nil || wr.Opcode == verbs.OpBindMW {
		wr.Flags |= verbs.SendSignaled
	}
	e.signaled = wr.Flags&verbs.SendSignaled != 0
	if len(spans) > 0 {
		n, err := s.c.gather(s.sge, s.regions[int(slot)*s.c.sges:], spans)
		if err != nil {
			return err
		}
		e.n = n
		if !r.bind {
			wr.SGL = s.sge[:n]
		}
	}
	if _, err := s.c.ep.QP.PostSend(s.wr[:]...); err != nil {
		s.releaseEntry(slot)
		return postErr(err)
	}
	e.live = true
	s.head++
	s.maxInFlight = max(s.maxInFlight, int(s.head-s.tail))
	s.count(wr.Opcode, size)
	if e.signaled {
		s.unsignaled = 0
		s.pending++
	}
	if e.forUser {
		s.userPending++
	}
	return nil
}

// postErr returns why a request was refused, without the rest of a [verbs.PostError],
// which has the Conn's internal numbering.
func postErr(err error) error {
	if refused, ok := errors.AsType[*verbs.PostError](err); ok {
		return refused.Err
	}
	return err
}

// gather makes an SGL of the spans and holds their regions. Empty spans are left
// out.
func (c *Conn) gather(sgl []verbs.SGE, held []*LocalRegion, spans []Span) (n int, err error) {
	for i := range spans {
		s := &spans[i]
		if s.Len == 0 {
			continue
		}
		if err := s.Region.acquire(); err != nil {
			for _, r := range held[:n] {
				r.release()
			}
			return 0, err
		}
		held[n] = s.Region
		sgl[n] = s.Region.mr.SGE(s.Off, s.Len)
		n++
	}
	return n, nil
}

// releaseEntry releases the regions of the entry in a slot.
func (s *sender) releaseEntry(slot uint64) {
	e := &s.entries[slot]
	first := int(slot) * s.c.sges
	for i, r := range s.regions[first : first+e.n] {
		r.release()
		s.regions[first+i] = nil
	}
	e.n, e.live, e.op = 0, false, nil
}

func (s *sender) releaseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.entries {
		s.releaseEntry(uint64(slot))
	}
	s.tail = s.head
	s.ready = fifo[verbs.WC]{}
}

// handleCompletion accounts for a completion and passes it on.
func (s *sender) handleCompletion(wc *verbs.WC) {
	e := s.entries[wc.ID&s.mask]
	if !e.live || wc.ID < s.tail || wc.ID >= s.head {
		s.foreign++
		return
	}
	if wc.Status != verbs.WCSuccess {
		s.failed++
		s.c.setFailure(cm.SendError(wc))
	}
	if e.signaled {
		s.pending--
	}
	if e.forUser {
		s.userPending--
	}
	// Earlier requests are done as well, except READs on iWARP.
	for seq := s.tail; seq <= wc.ID; seq++ {
		if old := &s.entries[seq&s.mask]; old.live && (seq == wc.ID || !(s.c.iwarp && old.read)) {
			s.releaseEntry(seq & s.mask)
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
	case e.forUser || wc.Status != verbs.WCSuccess:
		wc.ID = e.id
		s.ready.push(*wc)
	}
}

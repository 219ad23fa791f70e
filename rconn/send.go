package rconn

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// sender accounts for the send queue. It signals at least one request in every half queue, even if
// the user does not, to learn which have completed.
type sender struct {
	queue
	userPending int   // requests in flight whose completions go to the user
	unsignaled  int   // requests posted since the last signaled one
	counts      Stats // only of requests

	// The request to post. It does not refer to the caller's memory, which thus need not be on the
	// heap.
	wr     [1]verbs.SendWR
	args   verbs.SendArgs
	bind   verbs.MWBind
	inline []byte

	testing call // the last of Conn.test, busy until it has completed

	scratch     *LocalRegion // for a byte that is read and not used
	scratchSpan [1]Span
}

func (s *sender) init(c *Conn, size verbs.QPCap) {
	s.queue.init(c, c.ep.SendCQ, s.handleCompletion, size.MaxSendWR+1, size.MaxSendSGE)
	s.depth-- // one place is for a test
	s.inline = make([]byte, c.ep.QP.Cap().MaxInline)
}

// Post posts a request and does not wait. The error matches [verbs.ErrQueueFull] if there is no
// room, and [errors.ErrUnsupported] if the device lacks the operation. What the request refers
// to, except its local memory, may be reused when Post returns.
func (c *Conn) Post(o Op) error {
	if err := c.send.lockAndPost(&o); err != nil {
		what := "post " + o.Opcode.String() + " to"
		if o.advert {
			what = "advertise to"
		}
		return c.fail(what, err)
	}
	return nil
}

func (s *sender) lockAndPost(o *Op) error {
	s.mu.Lock()
	defer s.mu.Unlock() // reading unmapped inline data panics
	err := s.post(o, nil)
	if errors.Is(err, verbs.ErrQueueFull) {
		s.stats.Stalls++
	}
	return err
}

// post posts a request of the user, or of a call that waits for it.
func (s *sender) post(o *Op, call *call) error {
	if err := s.c.checkUsable(); err != nil {
		return err
	}
	size, err := s.prepare(o)
	if err != nil {
		return err
	}
	wr, spans := &s.wr[0], o.Spans
	if s.c.iwarp && wr.Opcode == verbs.OpRDMARead && len(wr.SGL)+len(wr.Inline) == 0 {
		return s.postReads(o, call, size)
	}
	if err := s.checkRoom(1, o, call); err != nil {
		return err
	}
	if o.advert {
		spans = nil
	}
	if err := s.postOne(o, call, spans, o.Flags, size); err != nil {
		return err
	}
	switch {
	case o.advert:
		s.counts.AdvertsSent++
	case o.window != nil:
		o.window.bound = bound(&s.bind)
	}
	return nil
}

// prepare checks a request, copies it to s.wr, except the fields that postOne sets, and returns the
// length of its data.
func (s *sender) prepare(o *Op) (size int, err error) {
	local, remote := o.requiredAccess()
	if size, err = s.check(o.Spans, local); err != nil {
		return 0, err
	}
	if len(o.Spans) > 0 && len(o.SGL) > 0 {
		return 0, fmt.Errorf("spans together with an SGL: %w", verbs.ErrRange)
	}
	wr := &s.wr[0]
	*wr = verbs.SendWR{
		Opcode: o.Opcode, Imm: o.Imm, RemoteAddr: o.RemoteAddr, RKey: o.RKey,
	}
	s.args = verbs.SendArgs{}
	if a := o.Args; a != nil {
		s.args.CompareAdd, s.args.Swap, s.args.Flush = a.CompareAdd, a.Swap, a.Flush
		wr.Args = &s.args
	}
	switch {
	case o.advert:
		size = AdvertSize
		wr.Inline, err = appendAdvert(s.inline[:0], o.Imm, o.Spans[0])
	case wr.Opcode == verbs.OpBindMW && o.args().Bind == nil:
		size, wr.Args, s.args.Bind = 0, &s.args, &s.bind
		s.bind, err = o.binding(s.c)
	default:
		var n int
		n, err = s.copyData(o)
		size += n
	}
	if err == nil && (remote != 0 && o.RemoteAddr == 0 && o.RKey == 0 || remote == 0 && o.At != (Target{})) {
		wr.RemoteAddr, wr.RKey = o.At.addr(), o.At.Region.Key
		err = o.checkTarget(size, remote)
	}
	return size, err
}

// copyData copies the request's SGL, inline data, and the Bind of its Args, and returns the length
// of its data.
func (s *sender) copyData(o *Op) (size int, err error) {
	wr := &s.wr[0]
	if len(o.SGL) > 0 {
		if len(o.SGL) > len(s.sge) {
			return 0, fmt.Errorf("%w: %d of at most %d", verbs.ErrTooManySGEs, len(o.SGL), len(s.sge))
		}
		wr.SGL = s.sge[:copy(s.sge, o.SGL)]
		for _, e := range wr.SGL {
			size += int(e.Length)
		}
	}
	n := len(o.Inline)
	for _, b := range o.args().InlineList {
		n += len(b)
	}
	if n > len(s.inline) {
		return 0, fmt.Errorf("%w: %d bytes of at most %d", verbs.ErrInlineTooLong, n, len(s.inline))
	}
	if n > 0 {
		wr.Inline = append(s.inline[:0], o.Inline...)
		for _, b := range o.args().InlineList {
			wr.Inline = append(wr.Inline, b...)
		}
	}
	if b := o.args().Bind; b != nil {
		s.bind = *b
		s.args.Bind = &s.bind
	}
	return size + n, nil
}

// postReads posts a READ on iWARP, one request for each span that is not empty. If all are empty,
// it reads one byte and ignores it: siw's responder, when busy, answers an empty READ with the
// length of an earlier one, which breaks the connection (siw_activate_tx leaves the old length,
// Linux 6.1 to 7.2).
func (s *sender) postReads(o *Op, call *call, total int) error {
	n, last, spans := 0, 0, o.Spans
	for i := range spans {
		if spans[i].Len > 0 {
			n, last = n+1, i
		}
	}
	wr := &s.wr[0]
	if total == 0 {
		if at := o.At; o.RemoteAddr == 0 && o.RKey == 0 {
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
	if err := s.checkRoom(n, o, call); err != nil {
		return err
	}
	for i := range spans[:last+1] {
		if spans[i].Len == 0 {
			continue
		}
		flags, size := o.Flags, min(spans[i].Len, total)
		if i < last {
			flags &^= verbs.SendSignaled
		}
		if err := s.postOne(o, call, spans[i:i+1], flags, size); err != nil {
			return err
		}
		s.entries[s.slot(s.head-1)].empty = total == 0
		wr.RemoteAddr += uint64(spans[i].Len)
	}
	return nil
}

func (s *sender) checkRoom(n int, o *Op, call *call) error {
	if !s.hasRoom(n) {
		s.poll()
	}
	switch {
	case uint64(n) > s.depth:
		return fmt.Errorf("%d requests in a queue for %d: %w", n, s.depth, verbs.ErrRange)
	case !s.hasRoom(n):
		return verbs.ErrQueueFull
	case call == nil && o.Flags&verbs.SendSignaled != 0 && uint64(s.userPending+s.ready.Len()) >= s.depth:
		return fmt.Errorf("%w of completions that were not taken", verbs.ErrQueueFull)
	}
	return nil
}

func (s *sender) hasRoom(n int) bool {
	used := s.head - s.tail
	if s.testing.busy {
		used--
	}
	return used+uint64(n) <= s.depth
}

// test is the test of the connection for [bridge.KeepAlive]: a WRITE of no bytes, unless a request
// in flight tests it as well. Nobody else may poll, so it looks for failures of all requests.
func (c *Conn) test(post bool) error {
	s := &c.send
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poll()
	if err := c.brokenErr(); errors.Is(err, verbs.ErrDisconnected) {
		return err
	}
	if !post || s.pending > 0 || c.checkUsable() != nil {
		return nil
	}
	s.testing = call{busy: true}
	s.entries[s.slot(s.head)] = entry{call: &s.testing, signaled: true}
	s.wr[0] = verbs.SendWR{ID: s.head, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	if _, err := s.c.ep.QP.PostSend(s.wr[:]...); err != nil { // it is closed, or lost with its device
		s.testing.busy = false
		return nil
	}
	s.posted()
	s.unsignaled = 0
	s.pending++
	return nil
}

// postOne posts s.wr with size bytes. The caller has checked that there is room.
func (s *sender) postOne(o *Op, call *call, spans []Span, flags verbs.SendFlags, size int) error {
	slot := s.slot(s.head)
	e := &s.entries[slot]
	wr := &s.wr[0]
	*e = entry{
		id: o.ID, call: call, forUser: flags&verbs.SendSignaled != 0 && call == nil,
		read: wr.Opcode == verbs.OpRDMARead || wr.Opcode == verbs.OpRDMAReadInv, // which iWARP completes out of order
	}
	wr.ID, wr.Flags = s.head, flags
	s.unsignaled++
	// On iWARP requests overtake READs, so a later completion does not prove them. On mlx5 binds
	// take the room of several requests, so that less than half a queue may fit.
	if s.unsignaled >= int(s.depth+1)/2 || s.c.iwarp && e.read || call != nil || wr.Opcode == verbs.OpBindMW {
		wr.Flags |= verbs.SendSignaled
	}
	e.signaled = wr.Flags&verbs.SendSignaled != 0
	if len(spans) > 0 {
		n, err := s.gather(spans)
		if err != nil {
			return err
		}
		e.n = n
		if wr.Opcode != verbs.OpBindMW {
			wr.SGL = s.sge[:n]
		}
	}
	if _, err := s.c.ep.QP.PostSend(s.wr[:]...); err != nil {
		s.release(slot)
		return postErr(err)
	}
	s.posted()
	s.counts.count(wr.Opcode, size)
	if e.signaled {
		s.unsignaled = 0
		s.pending++
	}
	if e.forUser {
		s.userPending++
	}
	return nil
}

// postErr returns why a request was refused, without the Conn's internal numbering in a
// [verbs.PostError].
func postErr(err error) error {
	if refused, ok := errors.AsType[*verbs.PostError](err); ok {
		return refused.Err
	}
	return err
}

func (s *sender) handleCompletion(wc *verbs.WC) {
	e := s.entries[s.slot(wc.ID)]
	if wc.Status != verbs.WCSuccess {
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
		if old := &s.entries[s.slot(seq)]; old.live && (seq == wc.ID || !(s.c.iwarp && old.read)) {
			s.release(s.slot(seq))
		}
	}
	s.advance()
	if e.empty && wc.Status == verbs.WCSuccess {
		wc.ByteLen = 0
	}
	switch {
	case e.call == &s.testing:
		s.testing.busy = false
	case e.call != nil:
		e.call.wc, e.call.done = *wc, true
	case e.forUser || wc.Status != verbs.WCSuccess:
		wc.ID = e.id
		s.ready.Push(*wc)
	}
}

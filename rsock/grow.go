package rsock

import (
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// With Options.IdleBuffer rings begin small: most connections of some servers are idle, and each
// ring is locked memory.
//
// The receive ring grows by an offer of a part of a larger ring where a part of the old one was due.
// A descriptor may name any memory, so peers need not know. The ring does not shrink again: an offer
// cannot be taken back, and the peer always has one. The old one stays registered, as the table of
// descriptors is beside it, whose address the peer has from the hello.
//
// The send ring is known to this side alone: it is replaced at any time, and the old one goes when
// its data has been sent.

// growth is how busy the small receive ring is.
type growth struct {
	since time.Time
	uses  int // halves that were offered again since then
	ring  *uverbs.MR
}

// A receive ring grows when it was used up usesToGrow/2 times within growTime: one of 8 KiB by 64
// KiB of data.
const (
	usesToGrow = 16
	growTime   = time.Second
)

// isSmall reports whether the ring may grow.
func (r *reader) isSmall() bool {
	return len(r.ring.buf) < r.c.opt.ReadBuffer-sgeCount*sgeSize && r.ring.next == nil
}

// grow allocates a larger ring if the ring is busy. The caller holds both locks; mu is unlocked
// meanwhile.
func (r *reader) grow() {
	g, c := &r.growth, r.c
	if g.uses < usesToGrow || g.ring != nil || !r.isSmall() || c.isOver() {
		return
	}
	if g.ring = c.alloc(c.opt.ReadBuffer, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); g.ring == nil {
		c.opt.ReadBuffer = len(r.ring.buf) // it stays small
	}
}

// alloc allocates a region, or returns nil. The caller holds mu, which is unlocked meanwhile.
func (c *Conn) alloc(size int, access verbs.Access) (mr *uverbs.MR) {
	c.unlocked(func() { mr, _ = c.ep.AllocMR(size, access) })
	return mr
}

// offering is called before a half of the ring is offered again, and offers the first half of a
// larger ring instead if there is one.
func (r *reader) offering() {
	g := &r.growth
	switch {
	case !r.isSmall():
	case g.ring != nil:
		half := uint32(g.ring.Len() / 2)
		r.c.control.offer, r.c.control.half = sge{addr: g.ring.Addr(), key: g.ring.RKey(), length: half}, 0
		r.ring.next, r.ring.end = g.ring.Bytes(), r.ring.offered
	default:
		if now := time.Now(); now.Sub(g.since) > growTime {
			g.since, g.uses = now, 0
		}
		g.uses++
	}
}

// grow replaces a small send ring by a larger one if it is full, or will be by the n bytes that a
// Write has left. The caller holds both locks; mu is unlocked meanwhile.
func (w *writer) grow(n int) {
	w.freeOld()
	c, size := w.c, len(w.ring.buf)
	if size < c.opt.WriteBuffer && (n > size || !c.hasRoom()) && !w.resize(c.opt.WriteBuffer) {
		c.opt.WriteBuffer = size // it stays small
	}
}

// shrink makes the send ring small again. All data has been sent. The caller holds mu, which is
// unlocked meanwhile.
func (w *writer) shrink() {
	if idle := w.c.opt.IdleBuffer; len(w.ring.buf) > idle && w.mu.TryLock() {
		defer w.mu.Unlock()
		w.ring.freed = w.ring.head
		w.freeOld()
		if w.resize(idle) {
			w.freeOld()
		}
	}
}

// resize begins a new send ring behind the data that is in the present one.
func (w *writer) resize(size int) bool {
	mr := w.c.alloc(size, verbs.AccessLocalWrite)
	if mr == nil {
		return false
	}
	w.ring.use(mr)
	w.signals.most = uint64(size / 4)
	return true
}

// freeOld frees the replaced send ring if its data has been sent.
func (w *writer) freeOld() {
	s := &w.ring
	if s.old == nil || s.freed < s.start {
		return
	}
	old := s.old
	s.old = nil
	var err error
	if w.c.unlocked(func() { err = old.Close() }); err != nil {
		w.c.fail(&resetError{err})
	}
}

package rconn

import (
	"context"
	"errors"

	"github.com/goverbs/verbs"
)

// advertSlots is how many receives for advertisements may be posted at once.
const advertSlots = 4096 / AdvertSize

// receipt is a posted receive.
type receipt struct {
	id     uint64
	live   bool
	advert bool
	off    int // where in the region for advertisements
	n      int // regions held
}

// receiver keeps the books of the receive queue, which users' receives and those
// for advertisements share, in the order in which they were posted.
type receiver struct {
	box
	entries []receipt // by sequence number, which is the WR's ID
	regions []*LocalRegion
	mask    uint64
	depth   uint64
	users   int    // receives of the user's, posted or completed and not taken
	tail    uint64 // the oldest posted
	head    uint64 // the next to be

	slots   *LocalRegion // for advertisements
	next    int          // the next slot
	posted  int          // receives for advertisements
	adverts fifo[advert]

	wr  [1]verbs.RecvWR
	sge []verbs.SGE
}

type advert struct {
	region RemoteRegion
	err    error
}

func (r *receiver) init(c *Conn, opt Options) {
	r.box.init(c, c.ep.RecvCQ, r.done)
	r.users = opt.RecvQueue
	r.depth = uint64(opt.RecvQueue + opt.Adverts)
	r.entries = make([]receipt, roundUp(int(r.depth)))
	r.mask = uint64(len(r.entries) - 1)
	r.regions = make([]*LocalRegion, len(r.entries)*c.sges)
	r.sge = make([]verbs.SGE, c.sges)
}

// PostRecv posts a receive: the next message that has none yet goes to the
// spans, and the completion carries id. Receives for messages and for
// advertisements are used in the order in which they were posted.
func (c *Conn) PostRecv(id uint64, spans ...Span) error {
	r := &c.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := c.check(spans, verbs.AccessLocalWrite); err != nil {
		return c.fail("post receive from", err)
	}
	if err := r.post(receipt{id: id}, spans); err != nil {
		return c.fail("post receive from", err)
	}
	return nil
}

// PostRecvAdvert posts a receive for an advertisement, into memory of the
// Conn's own. See [Options].Adverts for those that come first.
func (c *Conn) PostRecvAdvert() error {
	r := &c.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.postAdvert(); err != nil {
		return c.fail("post receive for an advertisement from", err)
	}
	return nil
}

func (r *receiver) postAdvert() (err error) {
	if r.slots == nil {
		if r.slots, err = r.c.Alloc(advertSlots*AdvertSize, LocalWrite); err != nil {
			return err
		}
	}
	if r.posted == advertSlots {
		return verbs.ErrQueueFull
	}
	off := r.next * AdvertSize
	spans := [...]Span{r.slots.Span(off, AdvertSize)}
	if err := r.post(receipt{advert: true, off: off}, spans[:]); err != nil {
		return err
	}
	r.posted++
	r.next = (r.next + 1) % advertSlots
	return nil
}

func (r *receiver) post(e receipt, spans []Span) error {
	if err := r.c.unfit(); err != nil {
		return err
	}
	if r.full(e.advert) {
		r.collect()
		if r.full(e.advert) {
			return verbs.ErrQueueFull
		}
	}
	slot := r.head & r.mask
	n, err := r.c.gather(r.sge, r.regions[int(slot)*r.c.sges:], spans)
	if err != nil {
		return err
	}
	e.n, e.live = n, true
	r.entries[slot] = e
	r.wr[0] = verbs.RecvWR{ID: r.head, SGL: r.sge[:n]}
	if _, err := r.c.ep.QP.PostRecv(r.wr[:]...); err != nil {
		r.drop(slot)
		return err
	}
	r.head++
	r.coming++
	return nil
}

// full says whether there is room for no more.
func (r *receiver) full(advert bool) bool {
	if r.head-r.tail >= r.depth {
		return true
	}
	return !advert && r.coming-r.posted+r.ready.len() >= r.users
}

func (r *receiver) drop(slot uint64) {
	e := &r.entries[slot]
	first := int(slot) * r.c.sges
	for i, region := range r.regions[first : first+e.n] {
		region.drop()
		r.regions[first+i] = nil
	}
	e.n, e.live = 0, false
}

func (r *receiver) dropAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for slot := range r.entries {
		r.drop(uint64(slot))
	}
	r.tail = r.head
	r.ready = fifo[verbs.WC]{}
}

// done sorts a completion.
func (r *receiver) done(wc *verbs.WC) {
	slot := wc.ID & r.mask
	e := r.entries[slot]
	if !e.live || wc.ID < r.tail || wc.ID >= r.head {
		return
	}
	if wc.Status != verbs.WCSuccess {
		r.c.fails(wc.Err())
	}
	r.coming--
	r.drop(slot)
	for r.tail < r.head && !r.entries[r.tail&r.mask].live {
		r.tail++
	}
	if !e.advert {
		wc.ID = e.id
		r.ready.push(*wc)
		return
	}
	r.posted--
	if wc.Status != verbs.WCSuccess {
		return // whoever waits hears that the connection has failed
	}
	msg := r.slots.Bytes()[e.off : e.off+int(wc.ByteLen)]
	region, err := ParseAdvert(msg)
	if err != nil {
		err = &AdvertError{Message: append([]byte(nil), msg...), Err: err}
	}
	r.adverts.push(advert{region, err})
}

// AdvertError is a message that took the place of an advertisement.
type AdvertError struct {
	Message []byte
	Err     error // matches [ErrAdvert]
}

func (e *AdvertError) Error() string { return e.Err.Error() }
func (e *AdvertError) Unwrap() error { return e.Err }

// PostAdvert advertises a part of a region to the peer, who must have posted a
// receive for it: by [Options].Adverts or [Conn.PostRecvAdvert]. tag is for the
// peer to know regions apart. It completes as other SENDs do.
func (c *Conn) PostAdvert(id uint64, flags verbs.SendFlags, tag uint32, s Span) error {
	r := request{id: id, opcode: verbs.OpSend, flags: flags, advert: tag, isAdvert: true}
	spans := [...]Span{s}
	return c.post("advertise to", r, spans[:])
}

// AwaitAdvert waits for the peer's next advertisement: they come in the order in
// which it posted them. With no receive for one posted it fails with
// [ErrNotExpected]; a message that is none gives an [*AdvertError].
func (c *Conn) AwaitAdvert(ctx context.Context) (RemoteRegion, error) {
	r := &c.recv
	var a advert
	err := r.wait(ctx, func() bool {
		if r.adverts.len() == 0 {
			a.err = ErrNotExpected
			return r.posted == 0 && r.over() == nil && c.broken() == nil
		}
		a = r.adverts.pop()
		return true
	})
	if err == nil {
		err = a.err
	}
	if err != nil {
		return RemoteRegion{}, c.fail("await advertisement from", err)
	}
	return a.region, nil
}

// TryAdvert is [Conn.AwaitAdvert] that does not wait.
func (c *Conn) TryAdvert() (_ RemoteRegion, ok bool, err error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	region, err := c.AwaitAdvert(ended)
	if errors.Is(err, context.Canceled) {
		return RemoteRegion{}, false, nil
	}
	return region, err == nil, err
}

package rconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/goverbs/verbs"
)

// advertSlots is the number of receives for advertisements that may be posted at once.
const advertSlots = 4096 / AdvertSize

// recvEntry is a posted receive.
type recvEntry struct {
	id     uint64
	live   bool
	advert bool
	off    int // offset in the region for advertisements
	n      int // number of regions in use
}

// receiver accounts for the receive queue. The user's receives and those for
// advertisements share it, in the order in which they were posted.
type receiver struct {
	completionQueue
	entries   []recvEntry // by sequence number, which is the WR's ID
	regions   []*LocalRegion
	mask      uint64
	depth     uint64
	userLimit int    // limit of the user's receives, posted or completed and not taken
	tail      uint64 // the oldest posted
	head      uint64 // the next to be posted

	slots         *LocalRegion // for advertisements
	nextSlot      int          // the next slot
	advertsPosted int          // receives for advertisements
	adverts       fifo[advert]

	received       Traffic
	valid, invalid uint64 // advertisements

	wr  [1]verbs.RecvWR
	sge []verbs.SGE
}

type advert struct {
	region RemoteRegion
	err    error
}

func (r *receiver) init(c *Conn, opt Options) {
	r.completionQueue.init(c, c.ep.RecvCQ, r.handleCompletion)
	r.userLimit = opt.recvs()
	r.depth = uint64(r.userLimit + opt.adverts())
	r.entries = make([]recvEntry, roundUp(int(r.depth)))
	r.mask = uint64(len(r.entries) - 1)
	r.regions = make([]*LocalRegion, len(r.entries)*c.sges)
	r.sge = make([]verbs.SGE, c.sges)
}

// PostRecv posts a receive for a message to the spans. The completion has id as its ID,
// and its Flags report whether the message had an immediate or invalidated a key.
// Receives for messages and for advertisements are used in the order in which they were
// posted.
func (c *Conn) PostRecv(id uint64, spans ...Span) error {
	r := &c.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := c.check(spans, verbs.AccessLocalWrite)
	if err == nil {
		err = r.post(recvEntry{id: id}, spans)
	}
	if err != nil {
		return c.fail("post receive from", err)
	}
	return nil
}

// PostRecvAdvert posts a receive for an advertisement, in memory of the Conn.
// [Options].Adverts does so before the peer can send.
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
	if r.advertsPosted == advertSlots {
		return verbs.ErrQueueFull
	}
	off := r.nextSlot * AdvertSize
	spans := [...]Span{r.slots.Span(off, AdvertSize)}
	if err := r.post(recvEntry{advert: true, off: off}, spans[:]); err != nil {
		return err
	}
	r.advertsPosted++
	r.nextSlot = (r.nextSlot + 1) % advertSlots
	return nil
}

func (r *receiver) post(e recvEntry, spans []Span) error {
	if err := r.c.checkUsable(); err != nil {
		return err
	}
	if r.isFull(e.advert) {
		r.poll()
		if r.isFull(e.advert) {
			r.stalls++
			if r.depth == 0 || !e.advert && r.userLimit == 0 {
				return verbs.ErrNoRecvRoom
			}
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
		r.releaseEntry(slot)
		return postErr(err)
	}
	r.head++
	r.maxInFlight = max(r.maxInFlight, int(r.head-r.tail))
	r.pending++
	return nil
}

// isFull reports whether there is no room.
func (r *receiver) isFull(advert bool) bool {
	if r.head-r.tail >= r.depth {
		return true
	}
	return !advert && r.pending-r.advertsPosted+r.ready.len() >= r.userLimit
}

func (r *receiver) releaseEntry(slot uint64) {
	e := &r.entries[slot]
	first := int(slot) * r.c.sges
	for i, region := range r.regions[first : first+e.n] {
		region.release()
		r.regions[first+i] = nil
	}
	e.n, e.live = 0, false
}

func (r *receiver) releaseAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for slot := range r.entries {
		r.releaseEntry(uint64(slot))
	}
	r.tail = r.head
	r.ready = fifo[verbs.WC]{}
}

// handleCompletion accounts for a completion and passes it on.
func (r *receiver) handleCompletion(wc *verbs.WC) {
	slot := wc.ID & r.mask
	e := r.entries[slot]
	if !e.live || wc.ID < r.tail || wc.ID >= r.head {
		r.foreign++
		return
	}
	if wc.Status != verbs.WCSuccess {
		r.failed++
		r.c.setFailure(wc.Err())
	}
	r.pending--
	r.releaseEntry(slot)
	for r.tail < r.head && !r.entries[r.tail&r.mask].live {
		r.tail++
	}
	if !e.advert {
		if wc.Status == verbs.WCSuccess {
			r.received.add(int(wc.ByteLen))
		}
		wc.ID = e.id
		r.ready.push(*wc)
		return
	}
	r.advertsPosted--
	if wc.Status != verbs.WCSuccess {
		return // waitErr reports to waiters that the connection has failed
	}
	region, err := r.parse(wc, e.off)
	if err == nil {
		r.valid++
	} else {
		r.invalid++
	}
	r.adverts.push(advert{region, err})
}

// parse returns the advertisement in the slot at off.
func (r *receiver) parse(wc *verbs.WC, off int) (RemoteRegion, error) {
	if wc.Opcode != verbs.WCRecv { // ByteLen is chosen by the peer, and the slot is empty
		return RemoteRegion{}, &AdvertError{Err: fmt.Errorf("%w: RDMA WRITE with immediate", ErrAdvert)}
	}
	msg := r.slots.Bytes()[off : off+int(wc.ByteLen)]
	region, err := ParseAdvert(msg)
	if err != nil {
		return RemoteRegion{}, &AdvertError{Message: bytes.Clone(msg), Err: err}
	}
	return region, nil
}

// AdvertError is the error of a message that arrived when an advertisement was expected.
type AdvertError struct {
	Message []byte
	Err     error // matches [ErrAdvert]
}

func (e *AdvertError) Error() string { return e.Err.Error() }
func (e *AdvertError) Unwrap() error { return e.Err }

// PostAdvert advertises a part of a region to the peer, which must have posted a
// receive for it: by [Options].Adverts or [Conn.PostRecvAdvert]. The peer can distinguish
// regions by tag. The request completes as other SENDs do.
func (c *Conn) PostAdvert(id uint64, flags verbs.SendFlags, tag uint32, s Span) error {
	r := request{wr: verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: flags, Imm: tag}, advert: true}
	spans := [...]Span{s}
	if err := c.send.lockAndPost(&r, spans[:]); err != nil {
		return c.fail("advertise to", err)
	}
	return nil
}

// AwaitAdvert waits for the peer's next advertisement, in the order in which it posted
// them. It fails with [ErrNotExpected] if no receive for one is posted, and with an
// [*AdvertError] if a message arrived that is not an advertisement.
func (c *Conn) AwaitAdvert(ctx context.Context) (RemoteRegion, error) {
	r := &c.recv
	var a advert
	err := r.wait(ctx, func() (ok bool) {
		a, ok = r.advert()
		return ok
	})
	return c.advert(a, err)
}

// TryAdvert is [Conn.AwaitAdvert] without waiting: ok is false if no advertisement has
// arrived.
func (c *Conn) TryAdvert() (_ RemoteRegion, ok bool, err error) {
	r := &c.recv
	r.mu.Lock()
	r.poll()
	a, ok := r.advert()
	if !ok {
		err = r.waitErr()
	}
	r.mu.Unlock()
	if !ok && err == nil {
		return RemoteRegion{}, false, nil
	}
	region, err := c.advert(a, err)
	return region, err == nil, err
}

// advert takes the next advertisement if there is one, or returns ErrNotExpected if none
// can arrive. The caller holds mu.
func (r *receiver) advert() (a advert, ok bool) {
	if r.adverts.len() > 0 {
		return r.adverts.pop(), true
	}
	return advert{err: ErrNotExpected}, r.advertsPosted == 0 && r.waitErr() == nil && r.c.brokenErr() == nil
}

// advert returns an advertisement, or the error of waiting for it.
func (c *Conn) advert(a advert, err error) (RemoteRegion, error) {
	if err == nil {
		err = a.err
	}
	if err == nil {
		return a.region, nil
	}
	err = c.fail("await advertisement from", err)
	if errors.Is(err, ErrAdvert) {
		c.log(slog.LevelWarn, "peer sent no valid advertisement", "err", err)
	}
	return RemoteRegion{}, err
}

package rconn

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/fifo"
)

// advertSlots is the number of receives for advertisements that may be posted at once.
const advertSlots = 4096 / AdvertSize

// receiver accounts for the receive queue. The user's receives and the receives for advertisements
// share it, in the order of posting.
type receiver struct {
	queue
	userLimit int // limit of the user's receives, posted or completed and not taken

	slots         *LocalRegion // for advertisements
	nextSlot      int          // the next slot
	advertsPosted int          // receives for advertisements
	adverts       fifo.Queue[advert]

	received       Traffic
	valid, invalid uint64 // advertisements

	wr [1]verbs.RecvWR
}

type advert struct {
	region RemoteRegion
	err    error
}

func (r *receiver) init(c *Conn, size verbs.QPCap, adverts int) {
	r.userLimit = max(size.MaxRecvWR, 0)
	r.queue.init(c, c.ep.RecvCQ, r.handleCompletion, r.userLimit+adverts, size.MaxRecvSGE)
}

// PostRecv posts a receive for a message to the spans. The completion has id as its ID, and its
// Flags report whether the message had an immediate or invalidated a key. Receives for messages
// and for advertisements are used in the order of posting.
func (c *Conn) PostRecv(id uint64, spans ...Span) error {
	r := &c.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.check(spans, verbs.AccessLocalWrite)
	if err == nil {
		err = r.post(entry{id: id}, spans)
	}
	return c.fail("post receive from", err)
}

// PostRecvAdvert posts a receive for an advertisement, in memory of the Conn.
// [Options].Adverts does so before the peer can send.
func (c *Conn) PostRecvAdvert() error {
	r := &c.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.fail("post receive for an advertisement from", r.postAdvert())
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
	if err := r.post(entry{advert: true, off: off}, spans[:]); err != nil {
		return err
	}
	r.advertsPosted++
	r.nextSlot = (r.nextSlot + 1) % advertSlots
	return nil
}

func (r *receiver) post(e entry, spans []Span) error {
	if err := r.c.checkUsable(); err != nil {
		return err
	}
	if r.isFull(e.advert) {
		r.poll()
		if r.isFull(e.advert) {
			r.stats.Stalls++
			if r.depth == 0 || !e.advert && r.userLimit == 0 {
				return verbs.ErrNoRecvRoom
			}
			return verbs.ErrQueueFull
		}
	}
	n, err := r.gather(spans)
	if err != nil {
		return err
	}
	slot := r.slot(r.head)
	e.n = n
	r.entries[slot] = e
	r.wr[0] = verbs.RecvWR{ID: r.head, SGL: r.sge[:n]}
	if _, err := r.c.ep.QP.PostRecv(r.wr[:]...); err != nil {
		r.release(slot)
		return postErr(err)
	}
	r.posted()
	r.pending++
	return nil
}

func (r *receiver) isFull(advert bool) bool {
	if r.head-r.tail >= r.depth {
		return true
	}
	return !advert && r.pending-r.advertsPosted+r.ready.Len() >= r.userLimit
}

func (r *receiver) handleCompletion(wc *verbs.WC) {
	e := r.entries[r.slot(wc.ID)]
	if wc.Status != verbs.WCSuccess {
		r.c.setFailure(wc.Err())
	}
	r.pending--
	r.release(r.slot(wc.ID))
	r.advance()
	if !e.advert {
		if wc.Status == verbs.WCSuccess {
			r.received.add(int(wc.ByteLen))
		}
		wc.ID = e.id
		r.ready.Push(*wc)
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
	r.adverts.Push(advert{region, err})
}

// parse returns the advertisement in the slot at off.
func (r *receiver) parse(wc *verbs.WC, off int) (RemoteRegion, error) {
	if wc.Opcode != verbs.WCRecv { // the peer chooses ByteLen, and the slot is empty
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

// AwaitAdvert waits for the peer's next advertisement, unless ctx has ended and one has arrived.
// It fails with [ErrNotExpected] if no receive for one is posted, and with an [*AdvertError] if
// another message arrived.
func (c *Conn) AwaitAdvert(ctx context.Context) (RemoteRegion, error) {
	r := &c.recv
	var a advert
	err := r.wait(ctx, func() bool {
		if r.adverts.Len() > 0 {
			a = r.adverts.Pop()
			return true
		}
		a.err = ErrNotExpected
		return r.advertsPosted == 0 && r.waitErr() == nil && c.brokenErr() == nil
	})
	err = c.fail("await advertisement from", cmp.Or(err, a.err))
	if errors.Is(err, ErrAdvert) {
		c.log(slog.LevelWarn, "peer sent no valid advertisement", "err", err)
	}
	if err != nil {
		return RemoteRegion{}, err
	}
	return a.region, nil
}

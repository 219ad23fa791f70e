package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
)

// sendID is the ID of all sends; receives have that of their slot.
const sendID = 1 << 63

// play exchanges the messages, the client starting, and returns how long it
// took. It ends where rdma-core's programs do, so that neither side leaves
// while the other waits for it: when this side has both sent and received what
// it should, over all QPs.
func (p *pingpong) play(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := func() {}
	if p.Timeout > 0 {
		silence := time.AfterFunc(p.Timeout, func() {
			cancel(fmt.Errorf("nothing came from the peer for %v", p.Timeout))
		})
		defer silence.Stop()
		alive = func() { silence.Reset(p.Timeout) }
	}
	start := time.Now()
	err := p.rounds(ctx, alive)
	took := time.Since(start)
	if err == nil {
		return took, nil
	}
	err = pingpongCause(ctx, err)
	if errors.Is(err, verbs.WCRetryExcErr) {
		err = fmt.Errorf("the peer does not answer any more: %w", err)
	}
	return 0, fmt.Errorf("%d sent and %d received of %d messages: %w", p.sent, p.received, p.Iters, err)
}

func (p *pingpong) rounds(ctx context.Context, alive func()) error {
	for _, r := range p.rallies {
		r.awaiting = true
		if p.Host != "" {
			if err := p.send(r); err != nil {
				return err
			}
		}
	}
	var wcs [32]verbs.WC
	for p.sent < p.Iters || p.received < p.Iters {
		n, err := p.completions(ctx, wcs[:])
		if err != nil {
			return err
		}
		alive()
		for i := range wcs[:n] {
			if err := p.completed(&wcs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// completions waits for some, sleeping or not. Even when not, it ends with the
// context.
func (p *pingpong) completions(ctx context.Context, wcs []verbs.WC) (int, error) {
	if p.Events {
		return p.cq.PollWait(ctx, wcs)
	}
	for ctx.Err() == nil {
		if n := p.cq.Poll(wcs); n > 0 {
			return n, nil
		}
	}
	return 0, ctx.Err()
}

func (p *pingpong) completed(wc *verbs.WC) error {
	switch err := wc.Err(); {
	case err != nil && wc.ID == sendID:
		return fmt.Errorf("send: %w", err)
	case err != nil:
		return fmt.Errorf("receive of %d bytes: %w", p.Size, err)
	}
	r, err := p.rallyOf(wc.QPNum)
	if err != nil {
		return err
	}
	if wc.ID == sendID {
		r.sending = false
		p.sent++
	} else if err := p.take(r, int(wc.ID), int(wc.ByteLen)); err != nil {
		return err
	}
	if r.sending || r.awaiting || p.sent >= p.Iters {
		return nil
	}
	r.awaiting = true
	return p.send(r)
}

func (p *pingpong) rallyOf(qpNum uint32) (*rally, error) {
	for _, r := range p.rallies {
		if r.qp.Num() == qpNum {
			return r, nil
		}
	}
	return nil, fmt.Errorf("completion of QP %d, which is none of these", qpNum)
}

// take is a message that came.
func (p *pingpong) take(r *rally, slot, n int) error {
	if n -= p.head; n != p.Size {
		return fmt.Errorf("the peer sends %d bytes and this side %d: give both the same -s", n, p.Size)
	}
	if p.Check {
		if err := p.check(r, slot); err != nil {
			return err
		}
	}
	r.received++
	r.awaiting = false
	p.received++
	p.spare = append(p.spare, p.recvWR(slot))
	if p.posted--; p.posted > len(p.rallies) {
		return nil
	}
	return p.postRecv()
}

func (p *pingpong) postRecv() error {
	post := p.rallies[0].qp.PostRecv
	if p.shared {
		post = p.srq.PostRecv
	}
	n, err := post(p.spare...)
	p.posted += n
	p.spare = p.spare[:0]
	return err
}

func (p *pingpong) send(r *rally) error {
	if p.Check && !p.shared {
		fillPattern(p.data, r.sent)
	}
	wr := verbs.SendWR{ID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, To: r.to}
	if p.Size <= int(r.qp.Cap().MaxInline) {
		wr.Inline = p.data
	} else {
		wr.SGL = []verbs.SGE{p.out}
	}
	if _, err := r.qp.PostSend(wr); err != nil {
		return err
	}
	r.sending = true
	r.sent++
	return nil
}

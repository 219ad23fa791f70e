package pingpong

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// sendID is the ID of all sends; receives have that of their slot.
const sendID = 1 << 63

// exchangeMessages exchanges the messages, starting with the client, and returns the time taken. It ends
// when this side has sent and received all its messages, over all QPs. rdma-core's programs
// end then too, so that neither side leaves while the other waits for it.
func (s *side) exchangeMessages(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	progress := func() {}
	if s.Timeout > 0 {
		idleTimer := time.AfterFunc(s.Timeout, func() {
			cancel(fmt.Errorf("nothing came from the peer for %v", s.Timeout))
		})
		defer idleTimer.Stop()
		progress = func() { idleTimer.Reset(s.Timeout) }
	}
	start := time.Now()
	err := s.rounds(ctx, progress)
	took := time.Since(start)
	if err == nil {
		return took, nil
	}
	err = cli.Cause(ctx, err)
	if errors.Is(err, verbs.WCRetryExcErr) {
		err = fmt.Errorf("the peer does not answer any more: %w", err)
	}
	return 0, fmt.Errorf("%d sent and %d received of %d messages: %w", s.sent, s.received, s.Iters, err)
}

func (s *side) rounds(ctx context.Context, progress func()) error {
	for _, l := range s.lanes {
		l.awaiting = true
		if s.Host != "" {
			if err := s.send(l); err != nil {
				return err
			}
		}
	}
	var wcs [32]verbs.WC
	for s.sent < s.Iters || s.received < s.Iters {
		n, err := s.completions(ctx, wcs[:])
		if err != nil {
			return err
		}
		progress()
		for i := range wcs[:n] {
			if err := s.completed(&wcs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// completions waits for completions, sleeping or polling. Either way it ends with the
// context.
func (s *side) completions(ctx context.Context, wcs []verbs.WC) (int, error) {
	if s.Events {
		return s.cq.PollWait(ctx, wcs)
	}
	for ctx.Err() == nil {
		if n := s.cq.Poll(wcs); n > 0 {
			return n, nil
		}
	}
	return 0, ctx.Err()
}

func (s *side) completed(wc *verbs.WC) error {
	switch err := wc.Err(); {
	case err != nil && wc.ID == sendID:
		return fmt.Errorf("send: %w", err)
	case err != nil:
		return fmt.Errorf("receive of %d bytes: %w", s.Size, err)
	}
	l, err := s.laneOf(wc.QPNum)
	if err != nil {
		return err
	}
	if wc.ID == sendID {
		l.sending = false
		s.sent++
	} else if err := s.handleRecv(l, int(wc.ID), int(wc.ByteLen)); err != nil {
		return err
	}
	if l.sending || l.awaiting || s.sent >= s.Iters {
		return nil
	}
	l.awaiting = true
	return s.send(l)
}

func (s *side) laneOf(qpNum uint32) (*lane, error) {
	for _, l := range s.lanes {
		if l.qp.Num() == qpNum {
			return l, nil
		}
	}
	return nil, fmt.Errorf("completion of QP %d, which is none of these", qpNum)
}

// handleRecv handles a received message.
func (s *side) handleRecv(l *lane, slot, n int) error {
	if n -= s.head; n != s.Size {
		return fmt.Errorf("the peer sends %d bytes and this side %d: give both the same -s", n, s.Size)
	}
	if s.Check {
		if err := s.check(l, slot); err != nil {
			return err
		}
	}
	l.received++
	l.awaiting = false
	s.received++
	s.unposted = append(s.unposted, s.recvWR(slot))
	if s.posted--; s.posted > len(s.lanes) {
		return nil
	}
	return s.postRecv()
}

func (s *side) postRecv() error {
	post := s.lanes[0].qp.PostRecv
	if s.shared {
		post = s.srq.PostRecv
	}
	n, err := post(s.unposted...)
	s.posted += n
	s.unposted = s.unposted[:0]
	return err
}

func (s *side) send(l *lane) error {
	if s.Check && !s.shared {
		fillPattern(s.data, l.sent)
	}
	wr := verbs.SendWR{ID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, To: l.to}
	if s.Size <= int(l.qp.Cap().MaxInline) {
		wr.Inline = s.data
	} else {
		wr.SGL = []verbs.SGE{s.out}
	}
	if _, err := l.qp.PostSend(wr); err != nil {
		return err
	}
	l.sending = true
	l.sent++
	return nil
}

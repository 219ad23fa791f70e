package perf

import (
	"context"
	"errors"
	"time"

	"github.com/goverbs/verbs/internal/latency"
)

// outcome is what a side knows after a run.
type outcome struct {
	own, peer report
	hist      *latency.Histogram // of a latency test's client
	lost      uint64             // answers, of datagrams
}

// play does a side's part, from when both are ready, and compares notes.
func (s *side) play() (o outcome, err error) {
	took, err := s.drive(&o)
	if err != nil {
		return o, err
	}
	if err := s.waitDone(); err != nil {
		return o, err
	}
	o.own = report{Sent: s.posted(), Received: s.counted(), Seconds: took.Seconds(), Damage: s.settle()}
	if err := s.ctl.send(message{Report: &o.own}); err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience+placing, errors.New("the peer does not report"))
	defer cancel()
	select {
	case o.peer = <-s.reports:
		return o, nil
	case <-ctx.Done():
		return o, context.Cause(ctx)
	}
}

func (s *side) drive(o *outcome) (took time.Duration, err error) {
	defer s.watch()()
	defer func() {
		if err != nil {
			err = s.why(err) // which the watch may know
		}
	}()
	if s.passive() {
		return 0, errors.Join(s.ctl.send(message{Done: &done{}}), s.waitDone())
	}
	defer s.stay()()
	if s.Mode == modeBW {
		return s.runBW()
	}
	t := s.newLat()
	if !s.client {
		return 0, t.serve()
	}
	took, err = t.ask()
	o.hist, o.lost = t.hist, t.lost
	return took, err
}

// placing is how long data may take that has been sent.
const placing = 5 * time.Second

// settle is damage, once all is there: an RDMA WRITE over iWARP completes when
// it has been sent, and what its sender says elsewhere may overtake it.
func (s *side) settle() (damage string) {
	for end := time.Now().Add(placing); ; time.Sleep(time.Millisecond) {
		if damage = s.damage(s.sent); damage == "" || time.Now().After(end) {
			return damage
		}
	}
}

// leave ends a run: the peer is told if it failed, and nobody reads from the
// control connection any more.
func (s *side) leave(err error) error {
	if err != nil {
		s.ctl.give(err)
	}
	err = errors.Join(err, s.close())
	s.hearing.Wait()
	return err
}

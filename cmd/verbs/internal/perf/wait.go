package perf

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// errOver is returned to a server that waits for more than its client sends.
var errOver = errors.New("peer is done")

// stay keeps a polling loop on its thread, so that the scheduler does not move
// it around; see the package's documentation.
func (s *side) stay() (leave func()) {
	if s.Events {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// ended returns why waiting for the peer is over: the run has failed, or a server's client is
// done.
func (s *side) ended() error {
	switch {
	case s.failed.Load():
		return context.Cause(s.ctx)
	case !s.client && s.over.Load():
		return errOver
	}
	return nil
}

// await waits for completions in cq, until a time if that is not zero: n is 0 then.
func (s *side) await(cq *uverbs.CQ, wcs []verbs.WC, until time.Time) (n int, err error) {
	armed := false
	for i := 0; ; i++ {
		if n := cq.Poll(wcs); n > 0 {
			for j := range wcs[:n] {
				if err := wcs[j].Err(); err != nil {
					return 0, err
				}
			}
			return n, nil
		}
		if s.channel == nil && i%16 != 0 {
			continue
		}
		if err := s.ended(); err != nil {
			return 0, err
		}
		switch {
		case s.channel == nil:
			if !until.IsZero() && !time.Now().Before(until) {
				return 0, nil
			}
			continue
		case !armed:
			if err := cq.Arm(false); err != nil {
				return 0, err
			}
			armed = true
			continue
		}
		_, err := s.channel.Sleep(s.ctx, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		armed = false
	}
}

// idle is what a loop does that found nothing to do: go on polling, or sleep
// until there is something in either CQ, or something else happened. Only a
// sleeper that armed both CQs and then found nothing in them may sleep.
func (s *side) idle(armed *bool, until time.Time) error {
	switch {
	case s.failed.Load():
		return context.Cause(s.ctx)
	case s.channel == nil:
		return nil
	case !*armed:
		*armed = true
		return errors.Join(s.sendCQ.Arm(false), s.recvCQ.Arm(false))
	}
	*armed = false
	_, err := s.channel.Sleep(s.ctx, until)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

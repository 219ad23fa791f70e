package perf

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// errPeerDone ends the wait of a server whose client sends no more.
var errPeerDone = errors.New("peer is done")

// lockThread locks a polling loop to its thread, so that the scheduler does not move
// it between processors; see the package documentation.
func (s *session) lockThread() (unlock func()) {
	if s.Events {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// checkEnd returns an error if waiting for the peer is over: the run has failed, or a server's
// client is done.
func (s *session) checkEnd() error {
	switch {
	case s.failed.Load():
		return context.Cause(s.ctx)
	case !s.client && s.peerDone.Load():
		return errPeerDone
	}
	return nil
}

// await waits for completions in cq. If until is not zero and has passed, n is 0.
func (s *session) await(cq *uverbs.CQ, wcs []verbs.WC, until time.Time) (n int, err error) {
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
		if !s.Events && i%16 != 0 {
			continue
		}
		if err := s.checkEnd(); err != nil {
			return 0, err
		}
		if !until.IsZero() && !time.Now().Before(until) {
			return 0, nil
		}
		if err := s.idle(&armed, until, cq); err != nil {
			return 0, err
		}
	}
}

// idle is called by a loop that found nothing to do. It returns at once if the side polls.
// Otherwise it arms the CQs on the first call, after which the loop must poll them once
// more, and sleeps on the next until an event of one of them or another wakeup.
func (s *session) idle(armed *bool, until time.Time, cqs ...*uverbs.CQ) error {
	if !s.Events {
		return nil
	}
	if *armed = !*armed; *armed {
		for _, cq := range cqs {
			if err := cq.Arm(false); err != nil {
				return err
			}
		}
		return nil
	}
	_, err := bridge.Sleep(s.opt.RecvCQ, s.ctx, until)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

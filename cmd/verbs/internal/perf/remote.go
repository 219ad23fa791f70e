package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// remote is the peer in a run: its reports on the control connection, and the end of the run, which
// either side can cause.
type remote struct {
	ctl       *control
	requested bool // the server knows of the run

	ctx      context.Context // ends with the run
	cancel   context.CancelCauseFunc
	failed   atomic.Bool
	sleeper  *uverbs.CQ // for which the test sleeps; nil when polling
	reader   sync.WaitGroup
	started  chan start
	done     chan struct{} // closed when the peer sends no more
	peerDone atomic.Bool   // done is closed
	sent     uint64        // by the peer; valid once done is closed
	reports  chan report
	waiting  atomic.Bool // for the peer, with nothing left to do
}

func newRemote(ctx context.Context, ctl *control) *remote {
	r := &remote{ctl: ctl, started: make(chan start, 1), done: make(chan struct{}), reports: make(chan report, 1)}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(r.ctx, func() { r.failed.Store(true) })
	return r
}

// wakeBy makes the ends of the run and of the peer's part wake a test that sleeps for a CQ.
func (r *remote) wakeBy(cq *uverbs.CQ) {
	r.sleeper = cq
	// The flag is set first: a test that wakes must find it.
	context.AfterFunc(r.ctx, func() { r.failed.Store(true); bridge.Wake(cq) })
}

// fail ends the run; the first reason counts.
func (r *remote) fail(err error) { r.cancel(err) }

// cause returns the cause of err: the failure of a request may be only a consequence. A peer
// that aborts reports the reason, but its QPs may be destroyed before the report arrives.
func (r *remote) cause(err error) error {
	var wc *verbs.WCError
	if r.ctx.Err() == nil && errors.As(err, &wc) {
		r.waiting.Store(true)
		select {
		case <-r.ctx.Done():
		case <-time.After(3 * time.Second): // longer than watch waits
		}
	}
	if cause := context.Cause(r.ctx); cause != nil {
		return cause
	}
	return err
}

// readMessages receives the peer's messages until its report.
func (r *remote) readMessages() {
	r.reader.Go(func() {
		for {
			m, err := r.ctl.receive(r.ctx)
			switch {
			case errors.Is(err, io.EOF):
				err = errors.New("peer left")
			case err != nil:
			case m.Start != nil && len(r.started) == 0:
				r.started <- *m.Start
			case m.Done != nil && !r.peerDone.Load():
				r.sent = m.Done.Sent
				r.peerDone.Store(true)
				close(r.done)
				if r.sleeper != nil {
					bridge.Wake(r.sleeper)
				}
			case m.Report != nil:
				r.reports <- *m.Report
				return
			default:
				err = cli.ErrProtocol
			}
			if err != nil {
				r.fail(err)
				return
			}
		}
	})
}

// waitDone waits until the peer sends no more, or the run fails.
func (r *remote) waitDone() error {
	select {
	case <-r.done:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// next waits for the peer's next message, for at most limit or until the run ends.
func next[T any](r *remote, from <-chan T, limit time.Duration, what string) (v T, err error) {
	ctx, cancel := context.WithTimeoutCause(r.ctx, limit, fmt.Errorf("the peer does not %s", what))
	defer cancel()
	select {
	case v = <-from:
		return v, nil
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

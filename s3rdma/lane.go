package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// lane is a queue pair of the server, which one transfer has at a time: an error ends all requests of
// the queue, and so those of one client.
type lane struct {
	qp *uverbs.QP
	cq *uverbs.CQ
	to verbs.UDAddr // of a DCI's requests

	transfer atomic.Pointer[transfer] // that has the lane
	waits    atomic.Int64             // since when next waits, in Unix time; 0 if it does not

	// put gives the lane back. If it is broken, n of the transfer's requests have not completed: put
	// returns when the device has ended them. Otherwise, the error says why their memory is lost.
	put func(broken bool, n int) error
}

// laneDepth is how many requests a transfer has posted at a time, at most.
const laneDepth = 16

// drainTime is how long the device may take to flush requests. It does so at once.
const drainTime = 10 * time.Second

func (s *Server) newLane(t verbs.QPType) (l *lane, err error) {
	l = &lane{}
	if l.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Depth: laneDepth + 1, Channel: s.ch}); err != nil {
		return nil, err
	}
	opt := uverbs.QPOptions{Type: t, SendCQ: l.cq, RecvCQ: l.cq, Cap: verbs.QPCap{MaxSendWR: laneDepth + 1, MaxSendSGE: 1, MaxRecvWR: -1}}
	if t == verbs.DCI {
		opt.DCKey = cmp.Or(s.opt.Fabric.DCKey, DefaultDCKey)
	}
	if l.qp, err = s.pd.CreateQP(opt); err != nil {
		l.cq.Close()
		return nil, err
	}
	return l, nil
}

// drain moves the queue pair to ERR, and takes the completions of n requests.
func (l *lane) drain(n int) error {
	if err := l.kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	for ; n > 0; n-- {
		if err := l.next(ctx); err != nil && !isCompletion(err) {
			return err
		}
	}
	return nil
}

// next waits for a completion, and returns its error.
func (l *lane) next(ctx context.Context) error {
	l.waits.Store(time.Now().UnixNano())
	defer l.waits.Store(0)
	_, err := l.cq.Next(ctx)
	return err
}

// kill makes the device end all requests, now and later. It may be called while a transfer has the lane.
func (l *lane) kill() error { return l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState) }

// close destroys the queue pair. Without an error the device uses no memory for it any more.
func (l *lane) close() error {
	err := l.qp.Close()
	l.cq.Close()
	return err
}

// isCompletion reports whether an error is that of a completion.
func isCompletion(err error) bool {
	_, ok := errors.AsType[*verbs.WCError](err)
	return ok
}

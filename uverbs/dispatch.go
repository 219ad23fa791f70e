package uverbs

import (
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/noescape"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/erdma"
	"github.com/goverbs/verbs/provider/mlx5"
	"github.com/goverbs/verbs/provider/rxe"
	"github.com/goverbs/verbs/provider/siw"
)

// builtin contains the drivers of this package. A registered driver for the same device
// driver replaces the built-in one.
var builtin = []provider.Driver{rxe.Driver{}, siw.Driver{}, mlx5.Driver{}, erdma.Driver{}}

func drivers() []provider.Driver {
	all := provider.Drivers()
	for _, b := range builtin {
		if !slices.ContainsFunc(all, func(d provider.Driver) bool { return d.ID() == b.ID() }) {
			all = append(all, b)
		}
	}
	return all
}

// Queues of all drivers are called through interfaces. Arguments of an interface's methods escape
// to the heap, and posting and polling must not allocate: [noescape.Slice] is used here alone. It
// relies on drivers to keep nothing of the arguments, see [provider.SendQueue].

// PostSend posts requests in order and rings one doorbell: a system call on rxe, and sometimes on
// siw. It returns the number of requests posted, all of which will complete. If it is less than
// len(wrs), the error is [verbs.ErrQueueFull], [verbs.ErrClosed], [verbs.ErrQueueFailed] or a
// [*verbs.PostError] for the next request. The QP fails if the doorbell does.
func (q *QP) PostSend(wrs ...verbs.SendWR) (int, error) { return q.send.Post(noescape.Slice(wrs)) }

// PostRecv posts receives, without a system call, but for one on an rxe QP in the error state. Its results
// are like PostSend's.
//
// If a QP of rxe or siw failed by itself, as a completion with an error shows, receives that are posted
// later complete only after Modify to ERR: without a call of the kernel nobody learns of the failure.
func (q *QP) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	if q.recv == nil {
		return 0, q.obj.fail("post recv on", verbs.ErrSRQ)
	}
	return q.recv.Post(noescape.Slice(wrs))
}

// PostRecv posts receives as [QP.PostRecv] does.
func (s *SRQ) PostRecv(wrs ...verbs.RecvWR) (int, error) { return s.queue.Post(noescape.Slice(wrs)) }

// Poll moves up to len(wcs) completions into wcs, and never waits.
func (q *CQ) Poll(wcs []verbs.WC) int {
	// Polls of an empty queue are short and frequent. All calls on that path are inlined, so
	// nothing has to be saved across a call.
	if c := q.common; c.TryLock() {
		switch {
		case !c.Plain():
			c.Unlock()
		case c.Empty():
			c.Unlock()
			return 0
		default:
			return q.queue.Take(noescape.Slice(wcs)) // unlocks
		}
	}
	return q.pollSlow(wcs)
}

func (q *CQ) pollSlow(wcs []verbs.WC) int { return provider.Poll(q.queue, noescape.Slice(wcs)) }

package cm

import (
	"errors"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// idleCQs are CQs of connections that are gone, for those to come: to make one and
// to map it takes a sixth of the time that a connection takes, and each has two.
type idleCQs struct {
	mu      sync.Mutex
	byDepth map[int][]*uverbs.CQ // what was asked for
	n       int
	used    quiet
	ending  sync.WaitGroup // those that close what nobody wanted
}

// mostIdle is how many are kept.
const mostIdle = 64

// lentCQ is one that an endpoint has.
type lentCQ struct {
	cq    *uverbs.CQ
	depth int // as asked for
	size  int // as it is then
}

// lend returns a CQ of the depth, to be given back.
func (h *home) lend(depth int) (lentCQ, error) {
	cq := h.cqs.get(depth)
	if cq == nil {
		var err error
		if cq, err = h.ctx.CreateCQ(uverbs.CQOptions{Depth: depth}); err != nil {
			return lentCQ{}, err
		}
	}
	return lentCQ{cq, depth, cq.Cap()}, nil
}

// giveBack ends a loan.
func (h *home) giveBack(l lentCQ) error {
	if l.cq.Cap() != l.size { // the program has resized it
		return l.cq.Close()
	}
	next, err := bridge.RecycleCQ(l.cq)
	if errors.Is(err, verbs.ErrClosed) { // the program has closed it
		return nil
	}
	if err != nil {
		return err
	}
	return h.cqs.put(l.depth, next.(*uverbs.CQ))
}

func (i *idleCQs) get(depth int) *uverbs.CQ {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.used.touch()
	cqs := i.byDepth[depth]
	if len(cqs) == 0 {
		return nil
	}
	last := len(cqs) - 1
	cq := cqs[last]
	i.byDepth[depth] = cqs[:last]
	i.n--
	return cq
}

func (i *idleCQs) put(depth int, cq *uverbs.CQ) error {
	if i.keep(depth, cq) {
		return nil
	}
	return cq.Close()
}

// keep says whether there is room for it.
func (i *idleCQs) keep(depth int, cq *uverbs.CQ) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.n == mostIdle {
		return false
	}
	if i.byDepth == nil {
		i.byDepth = map[int][]*uverbs.CQ{}
	}
	i.byDepth[depth] = append(i.byDepth[depth], cq)
	i.n++
	if i.used.touch() {
		i.used.watch(&i.mu, func() { // nobody has taken one or given one back for a while
			if all := i.takeAll(); all != nil {
				i.ending.Go(func() { closeAll(all) }) // who wants one does not wait for that
			}
		})
	}
	return true
}

// close closes them all. Nobody gives any back any more.
func (i *idleCQs) close() {
	i.mu.Lock()
	all := i.takeAll()
	i.mu.Unlock()
	closeAll(all)
	i.ending.Wait()
}

// takeAll is all there are. The caller holds i.mu.
func (i *idleCQs) takeAll() map[int][]*uverbs.CQ {
	all := i.byDepth
	i.byDepth, i.n = nil, 0
	return all
}

func closeAll(byDepth map[int][]*uverbs.CQ) {
	for _, cqs := range byDepth {
		for _, cq := range cqs {
			cq.Close()
		}
	}
}

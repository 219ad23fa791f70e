package cm

import (
	"errors"
	"sync"

	"github.com/goverbs/verbs/uverbs"
)

// idleCQs are CQs of connections that are gone, for those to come: to make one and
// to map it takes a sixth of the time that a connection takes, and each has two.
type idleCQs struct {
	mu      sync.Mutex
	byDepth map[int][]*uverbs.CQ // what was asked for
	n       int
	used    quiet
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
	next, err := l.cq.Recycle()
	if errors.Is(err, ErrClosed) { // the program has closed it
		return nil
	}
	if err != nil {
		return err
	}
	return h.cqs.put(l.depth, next)
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
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.n == mostIdle {
		return cq.Close()
	}
	if i.byDepth == nil {
		i.byDepth = map[int][]*uverbs.CQ{}
	}
	i.byDepth[depth] = append(i.byDepth[depth], cq)
	i.n++
	if i.used.touch() {
		i.used.watch(&i.mu, i.closeAll)
	}
	return nil
}

// close closes them all. Nobody gives any back any more.
func (i *idleCQs) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closeAll()
}

// closeAll is also what happens if nobody has taken one or given one back for a while.
func (i *idleCQs) closeAll() {
	for _, cqs := range i.byDepth {
		for _, cq := range cqs {
			cq.Close()
		}
	}
	i.byDepth, i.n = nil, 0
}

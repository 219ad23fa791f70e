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

// take returns a CQ of the depth, and how it is given back.
func (h *home) takeCQ(depth int) (*uverbs.CQ, func() error, error) {
	cq := h.cqs.get(depth)
	if cq == nil {
		var err error
		if cq, err = h.ctx.CreateCQ(uverbs.CQOptions{Depth: depth}); err != nil {
			return nil, nil, err
		}
	}
	size := cq.Cap()
	return cq, func() error {
		if cq.Cap() != size { // the program has resized it
			return cq.Close()
		}
		next, err := cq.Recycle()
		if errors.Is(err, ErrClosed) { // the program has closed it
			return nil
		}
		if err != nil {
			return err
		}
		return h.cqs.put(depth, next)
	}, nil
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

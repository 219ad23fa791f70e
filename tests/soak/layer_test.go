package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// layer is a kind of load.
type layer struct {
	name    string
	workers int // connections at once
	// serve begins to serve; the handlers it starts are the side's.
	serve func(*side) (service, error)
	// dial prepares a client of the service at addr.
	dial func(s *side, addr string, n *count) (client, error)
}

type service struct {
	addr  string
	close func() error // ends listening
	end   func() error // when the handlers have ended; nil for nothing
}

type client struct {
	life  func(ctx context.Context, r *rand.Rand) error // of one connection
	close func() error
}

var layers = []layer{
	{"uverbs", 2, serveVerbs, dialVerbs},
	{"rconn", 2, serveConn, dialConn},
	{"rmsg", 3, serveMsg, dialMsg},
	{"rsock", 2, serveStreams, dialStreams},
	{"http", 2, serveHTTP, dialHTTP},
	{"churn", 2, serveChurn, dialChurn},
}

// lifetime is how long a connection may take for all that it does, which is
// seconds unless something hangs.
const lifetime = 3 * time.Minute

// count is what a layer's clients did.
type count struct{ messages, bytes, conns atomic.Uint64 }

func (c *count) add(bytes int) {
	c.messages.Add(1)
	c.bytes.Add(uint64(bytes))
}

// side is a process's part of a run.
type side struct {
	device string
	ctx    context.Context // ends when the run has failed, or the handlers are to end
	cancel context.CancelFunc
	report func(failure string)
	stop   chan struct{} // closed when clients are to come to an end

	handlers sync.WaitGroup
}

func (s *side) addr() string  { return labtest.AddrOf(s.device) }
func (s *side) atomics() bool { return s.device != labtest.SIW }

// somewhere is an offset for n bytes in most of a peer's memory.
//
// siw sends up to 32 bytes that cross a page wrong, in answers to READs among
// others (6.1 to 7.2: the rest comes from the start of the first page, as
// siw_try_1seg takes what is on the second for what is on the first). So on siw
// those that are that short, if cut in four, are kept within a page.
func (s *side) somewhere(r *rand.Rand, n int) int {
	const page, short = 4096, 4 * 33
	off := r.IntN(most - n + 1)
	if over := off%page + n - page; s.device == labtest.SIW && n < short && over > 0 {
		off -= over
	}
	return off
}

// fail ends the run, of which the first failure is told, unless it is ending.
func (s *side) fail(layer, what string, err error) {
	if s.ctx.Err() != nil {
		return
	}
	text := fmt.Sprintf("%s %s: %v", layer, what, err)
	if errors.Is(err, context.DeadlineExceeded) {
		text += "\n" + stacks()
	}
	s.report(text)
	s.cancel()
}

// handle runs a handler, whose failure is the run's.
func (s *side) handle(layer string, f func(ctx context.Context) error) {
	s.handlers.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, lifetime+30*time.Second)
		defer cancel()
		if err := f(ctx); err != nil {
			s.fail(layer, "server", err)
		}
	})
}

// listen has what a layer's listener accepts served, all at once, until it is
// closed.
func listen[T any](s *side, layer string, accept func() (T, error), serve func(context.Context, T) error) {
	s.handlers.Go(func() {
		for {
			c, err := accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					s.fail(layer, "listener", err)
				}
				return
			}
			s.handle(layer, func(ctx context.Context) error { return serve(ctx, c) })
		}
	})
}

// stopping says whether clients are to come to an end.
func (s *side) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// stacks is what all goroutines do.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// work has a layer's clients live one life after the other until s.stop.
func (s *side) work(l layer, c client, n *count, seed uint64) *sync.WaitGroup {
	var wg sync.WaitGroup
	for w := range l.workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(l.name[0])<<32|uint64(l.name[1])<<16|uint64(w)))
			for life := 0; s.ctx.Err() == nil && !s.stopping(); life++ {
				ctx, cancel := context.WithTimeout(s.ctx, lifetime)
				err := c.life(ctx, r)
				cancel()
				if err != nil {
					s.fail(l.name, fmt.Sprintf("client %d, connection %d", w, life), err)
					return
				}
				n.conns.Add(1)
			}
		})
	}
	return &wg
}

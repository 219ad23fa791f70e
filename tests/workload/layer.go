// Package workload has the layers at work, for the tests that need load: sessions
// between two ends, in one process or in two, all of whose data is checked.
//
//	Session.Round ── data, some ways ─────► Server checks what it gets,
//	checks        ◄── other data ────────── and reports how its connections end
//
// Each side has a Key, which names all that it sends. [Layers] are what there is.
package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Layer is a package of this project, or two, at work.
type Layer struct {
	Name      string
	Datagrams bool // without connections, and on rxe only
	// Listen serves all who connect to addr until ctx ends or the server is closed.
	// report is called, by some goroutine, with the error of each connection that does
	// not end in good order, and of the listener.
	Listen func(ctx context.Context, addr string, report func(error)) (*Server, error)
	// Dial connects to a server.
	Dial func(ctx context.Context, addr string) (Session, error)
	// Died are the errors, by errors.Is, of a session whose peer or link is gone.
	Died []error
}

// Layers are all layers there are.
var Layers = []*Layer{CM, UD, RConn, RMsg, RSock, HTTP}

// ByName returns the layer of a name.
func ByName(name string) (*Layer, error) {
	for _, l := range Layers {
		if l.Name == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no layer %q", name)
}

// Use dials a server, works some rounds of size bytes, and closes the session.
func (l *Layer) Use(ctx context.Context, addr string, rounds, size int) error {
	s, err := l.Dial(ctx, addr)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	for i := range rounds {
		if err := s.Round(ctx, size); err != nil {
			s.Close()
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return errors.Join(s.Shutdown(ctx), s.Close())
}

// Session is a connection to a layer's server.
type Session interface {
	// Round has about n bytes go each way, by all the ways that the layer has, and
	// both sides check them. One error ends the session.
	Round(ctx context.Context, n int) error
	// Poke sends something that makes no difference. It may be called during Round,
	// and may fail: if the peer is gone, Round has an error.
	Poke()
	// Shutdown ends the session in good order, where the layer has such a thing; it
	// is still to be closed.
	Shutdown(ctx context.Context) error
	io.Closer
}

// Server is a layer's server.
type Server struct {
	Addr string
	stop func() error
	done chan struct{}
	err  error // after done
}

// Wait waits until the server has ended.
func (s *Server) Wait() error {
	<-s.done
	return s.err
}

// Close ends the listener and waits until all connections have ended.
func (s *Server) Close() error {
	s.stop()
	return s.Wait()
}

// Serve has what a listener accepts handled, each by a goroutine of its own, until
// ctx ends or the listener is closed. Then, with all handlers ended, end is called, if
// it is not nil.
func Serve[T any, A fmt.Stringer](ctx context.Context, l interface {
	Addr() A
	Close() error
}, accept func(context.Context) (T, error), handle func(context.Context, T) error, report func(error), end func() error) *Server {
	s := &Server{Addr: l.Addr().String(), stop: sync.OnceValue(l.Close), done: make(chan struct{})}
	abide := context.AfterFunc(ctx, func() { s.stop() })
	failed := func(what string, err error) {
		if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			report(fmt.Errorf("%s: %w", what, err))
		}
	}
	go func() {
		defer close(s.done)
		defer abide()
		var handlers sync.WaitGroup
		for {
			c, err := accept(ctx)
			if err != nil {
				failed("accept", err)
				break
			}
			handlers.Go(func() { failed("connection", handle(ctx, c)) })
		}
		s.err = s.stop()
		handlers.Wait()
		if end != nil {
			s.err = errors.Join(s.err, end())
		}
	}()
	return s
}

// party is what both ends of most layers have.
type party struct {
	mine, theirs Key
	rand         *rand.Rand
}

func newParty(mine Key) party {
	return party{mine, mine.Answers(), rand.New(rand.NewPCG(uint64(mine), 0))}
}

// sizes returns 1 to most sizes of messages, up to n bytes, which is the first, the
// others mostly much smaller.
func (p *party) sizes(most, n int) []int {
	all := []int{n}
	for range p.rand.IntN(most) {
		all = append(all, p.rand.IntN(n+1)>>p.rand.IntN(12))
	}
	return all
}

// room is the size of the memory that a peer may use. A counter follows it.
const room = 256 << 10

// somewhere returns an offset for n bytes of a peer's memory.
//
// siw sends up to 32 bytes that cross a page wrong, in answers to READs among
// others (6.1 to 7.2: the rest comes from the start of the first page, as
// siw_try_1seg takes what is on the second for what is on the first). So on siw
// those that are that short, if cut in four, are kept within a page.
func (p *party) somewhere(siw bool, n int) int {
	const page, short = 4096, 4 * 33
	off := p.rand.IntN(room - n + 1)
	if over := off%page + n - page; siw && n < short && over > 0 {
		off -= over
	}
	return off
}

// shared is the access of memory for the peer, with atomics where there are any.
func shared(c *uverbs.Context) (a verbs.Access, atomics bool) {
	a = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if atomics = c.Probe("atomics") == nil; atomics {
		a |= verbs.AccessRemoteAtomic
	}
	return a, atomics
}

// because adds the reason for which a connection ended to the error of a request
// that was flushed.
func because(err error, e *cm.Endpoint) error {
	if !errors.Is(err, verbs.WCFlushErr) {
		return err
	}
	select {
	case <-e.Done():
		return fmt.Errorf("%w: %w", e.Err(), err)
	case <-time.After(5 * time.Second):
		return err // a queue pair alone has failed
	}
}

// unlessEnded returns an error unless it says that the peer has closed. siw fails what
// it was sending then, and flushes the rest.
func unlessEnded(ctx context.Context, e *cm.Endpoint, err error) error {
	if !errors.Is(err, verbs.WCFlushErr) && !errors.Is(err, verbs.WCLocQPOpErr) && !errors.Is(err, verbs.ErrState) && !errors.Is(err, verbs.ErrDisconnected) {
		return err
	}
	select {
	case <-e.Done(): // flushes may be seen before
	case <-ctx.Done():
	}
	if errors.Is(e.Err(), verbs.ErrDisconnected) {
		return nil
	}
	return err
}

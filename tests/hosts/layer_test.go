package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// layer is one of this project's, at work between two hosts.
type layer struct {
	name      string
	datagrams bool // no connections, and on rxe only
	// serve answers whoever connects, until ctx ends, and says where.
	serve func(ctx context.Context, addr string) (at string, err error)
	dial  func(ctx context.Context, addr string) (session, error)
	// died is what a user hears of a peer or link that is gone, by errors.Is.
	died []error
}

// session is a connection to a layer's server.
type session interface {
	// round has n bytes, which the number names, go there and back in all the
	// ways that the layer has, and compares them.
	round(ctx context.Context, number, n int) error
	// poke sends something that makes no difference, at any time, and may fail:
	// if the peer is gone, round hears of it.
	poke()
	io.Closer
}

var layers = []*layer{&cmLayer, &udLayer, &connLayer, &msgLayer, &rsockLayer, &httpLayer}

func find(name string) *layer {
	for _, l := range layers {
		if l.name == name {
			return l
		}
	}
	panic("no layer " + name)
}

// listen serves, all at once, what accept yields, until it fails.
func listen[T any](accept func() (T, error), serve func(T)) {
	for {
		c, err := accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// workTime bounds a piece of work. The machines may be very slow.
const workTime = 2 * time.Minute

// use works with a server.
func (l *layer) use(ctx context.Context, addr string, rounds, size int) error {
	s, err := l.dial(ctx, addr)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	for i := range rounds {
		if err := s.round(ctx, i, size); err != nil {
			s.Close()
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return s.Close()
}

// noise is an endless stream that a number names.
func noise(number int) io.Reader {
	return rand.NewChaCha8([32]byte{byte(number), byte(number >> 8), byte(number >> 16)})
}

func fill(b []byte, number int) []byte {
	noise(number).Read(b)
	return b
}

// errData is what no fault excuses.
var errData = errors.New("the data is wrong")

// wrong says where two slices that should be the same differ.
func wrong(what string, got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%w: %s has %d bytes, want %d", errData, what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%w: %s differs from byte %d of %d", errData, what, i, len(got))
		}
	}
	return nil
}

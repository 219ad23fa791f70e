package harness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
)

// chunk is how many bytes a round moves each way.
const chunk = 64 << 10

// layer is one of the ways to move them.
type layer struct {
	name string
	// serve answers the rounds of all who connect to addr, until ctx ends.
	serve func(ctx context.Context, addr string, ready func(addr string)) error
	dial  func(ctx context.Context, addr string) (session, error)
}

// session is the side that dialed.
type session interface {
	// Round has a chunk checked by the peer and checks the one it answers with.
	Round(ctx context.Context) error
	Close() error
}

var layers = []layer{
	{"verbs", serveVerbs, dialVerbs},
	{"rconn", serveConn, dialConn},
	{"rmsg", serveMsg, dialMsg},
	{"rsock", serveRsock, dialRsock},
}

func layerOf(name string) (layer, error) {
	for _, l := range layers {
		if l.name == name {
			return l, nil
		}
	}
	return layer{}, fmt.Errorf("no layer %q", name)
}

var errCorrupt = errors.New("data arrived changed")

// The chunks of round n.
func request(n uint64) uint64 { return 2*n + 1 }
func answer(n uint64) uint64  { return 2*n + 2 }

// fill fills b with what no other seed gives.
func fill(b []byte, seed uint64) []byte {
	x := seed * 0x9e3779b97f4a7c15
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	return b
}

// verify says whether b is as fill left it.
func verify(b []byte, seed uint64) error {
	x := seed * 0x9e3779b97f4a7c15
	for i := 0; i < len(b); i += 8 {
		if got := binary.LittleEndian.Uint64(b[i:]); got != x {
			return fmt.Errorf("%w: chunk %d, byte %d: %#x for %#x", errCorrupt, seed, i, got, x)
		}
		x = x*6364136223846793005 + 1442695040888963407
	}
	return nil
}

// because adds the reason for which a connection ended to the error of a request
// that was flushed.
func because(err error, done <-chan struct{}, why func() error) error {
	if !errors.Is(err, verbs.WCFlushErr) {
		return err
	}
	select {
	case <-done:
		return fmt.Errorf("%w: %w", why(), err)
	case <-time.After(5 * time.Second):
		return err // a queue pair alone has failed
	}
}

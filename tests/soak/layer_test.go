package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/tests/workload"
	"github.com/goverbs/verbs/uverbs"
)

// layer is a kind of load.
type layer struct {
	*workload.Layer
	workers int // concurrent connections
	// runConn runs one connection, from dial to close.
	runConn func(ctx context.Context, s *side, addr string, r *rand.Rand, n *count) error
}

var layers = []layer{
	roundsLayer(workload.CM, 2, 256<<10),
	roundsLayer(workload.RConn, 2, 256<<10),
	roundsLayer(workload.RMsg, 3, 1<<20),
	roundsLayer(workload.RSock, 2, 4<<20),
	roundsLayer(workload.HTTP, 2, 2<<20),
	roundsLayer(workload.S3, 2, 1<<20),
	{&workload.Layer{Name: "churn", Listen: listenChurn}, 2, runChurnConn},
	{&workload.Layer{Name: "scenarios", Listen: listenScenarios}, 2, runScenario},
	victimsLayer(workload.CM),
	victimsLayer(workload.RConn),
	victimsLayer(workload.RMsg),
	victimsLayer(workload.RSock),
	victimsLayer(workload.HTTP),
	victimsLayer(workload.S3),
}

// layersOf returns the layers that a device can have.
func layersOf(t *testing.T, device string) []layer {
	iWARP := labtest.Must(uverbs.Find(device))(t).IWARP()
	return slices.DeleteFunc(slices.Clone(layers), func(l layer) bool { return iWARP && strings.HasSuffix(l.Name, workload.S3.Name) })
}

func init() {
	// The machine is busy.
	workload.MsgOptions = rmsg.Options{MaxMessage: 1 << 20, ConnectTimeout: time.Minute, Linger: time.Minute}
}

// roundsLayer returns a layer whose connections do some rounds of up to most bytes.
func roundsLayer(l *workload.Layer, workers, most int) layer {
	return layer{l, workers, func(ctx context.Context, s *side, addr string, r *rand.Rand, n *count) error {
		c, err := s.dial(ctx, l, addr)
		if err != nil {
			return err
		}
		defer c.Close()
		if stream, ok := c.(*workload.Stream); ok {
			if err := checkReadTimeout(stream, r); err != nil {
				return err
			}
		}
		for rounds := mostRounds - r.IntN(20); rounds > 0 && !s.stopping(); rounds-- {
			size := r.IntN(most+1) >> r.IntN(16)
			if err := c.Round(ctx, size); err != nil {
				return err
			}
			n.add(2 * size)
			s.rest(r)
		}
		return errors.Join(c.Shutdown(ctx), c.Close())
	}}
}

// dial connects; connections of rmsg share a loop.
func (s *side) dial(ctx context.Context, l *workload.Layer, addr string) (workload.Session, error) {
	if l == workload.RMsg {
		return workload.DialMsg(ctx, s.loop, addr)
	}
	return l.Dial(ctx, addr)
}

// checkReadTimeout checks that a read ends by its deadline, as the peer has sent nothing yet.
func checkReadTimeout(c *workload.Stream, r *rand.Rand) error {
	c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(20)) * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("read with a deadline: %d, %v", n, err)
	}
	return nil
}

// lifetime is how long a connection may last without its rests. It takes seconds unless something hangs.
const lifetime = 10 * time.Minute

// mostRounds is how many rounds a connection does at most, each followed by a rest.
const mostRounds = 24

// withLifetime bounds the time of a connection.
func withLifetime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, lifetime+mostRounds*2**pace)
}

// count counts what the clients of a layer did.
type count struct{ rounds, bytes, conns atomic.Uint64 }

func (c *count) add(bytes int) {
	c.rounds.Add(1)
	c.bytes.Add(uint64(bytes))
}

// side is the part of a process in a run.
type side struct {
	device string // of the kernel, or userSpace
	addr   string
	layers []layer
	faults bool            // of the network
	ctx    context.Context // ends when the run has failed, or the handlers must end
	cancel context.CancelFunc
	report func(failure string)
	stop   chan struct{} // closed when clients must end
	loop   *rmsg.Loop    // of clients
}

// fail reports a failure and ends the run, unless it is ending.
func (s *side) fail(layer, what string, err error) {
	if s.ctx.Err() != nil {
		return
	}
	text := fmt.Sprintf("%s %s: %v", layer, what, err)
	if errors.Is(err, context.DeadlineExceeded) {
		text += "\n" + stacks()
	}
	s.report(text)
	s.endSoon()
}

// endSoon ends a run that has failed, when the other side has reported what it knows of the reason.
func (s *side) endSoon() { time.AfterFunc(2*time.Second, s.cancel) }

// listen starts a server of a layer.
func (s *side) listen(l layer) (*workload.Server, error) {
	return l.Listen(s.ctx, s.addr+":0", func(err error) {
		if !s.tolerates(err) {
			s.fail(l.Name, "server", err)
		}
	})
}

// rest waits between rounds and connections, as -pace says, unless clients must end.
func (s *side) rest(r *rand.Rand) {
	if *pace > 0 {
		select {
		case <-time.After(time.Duration(r.Int64N(int64(2 * *pace)))):
		case <-s.stop:
		}
	}
}

// stopping reports whether clients must end.
func (s *side) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

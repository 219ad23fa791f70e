package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// The second device of a driver of software, which comes and goes while the first is under load.
const (
	goingDevice = "going0"
	goingLink   = "going"
	goingAddr   = "10.9.6.1"
)

// removals uses all layers on a device of its own, sets its link down and up, and removes it, again and again.
type removals struct {
	*side
	driver string
	done   int
}

// newRemovals makes the link of the device. An adapter has no second device.
func newRemovals(t *testing.T, s *side) *removals {
	driver, ok := map[string]string{labtest.RXE: "rxe", labtest.SIW: "siw"}[s.device]
	if !ok {
		return nil
	}
	labtest.Check(t, shell("ip link add "+goingLink+" type dummy && ip addr add "+goingAddr+"/24 dev "+goingLink+" && ip link set "+goingLink+" up"))
	t.Cleanup(func() { labtest.Check(t, shell("ip link del "+goingLink)) })
	return &removals{side: s, driver: driver}
}

func shell(script string) error {
	if out, err := exec.Command("sh", "-exc", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// start begins, until end is called.
func (r *removals) start(seed uint64) (end func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var working sync.WaitGroup
	working.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		for ctx.Err() == nil {
			if err := r.life(ctx, random); err != nil {
				r.fail("removal", fmt.Sprint(r.done), err)
				return
			}
			r.done++
			r.rest(random)
		}
	})
	return func() {
		cancel()
		working.Wait()
	}
}

// life is one of the device, which ends by its removal.
func (r *removals) life(ctx context.Context, random *rand.Rand) (err error) {
	if err := shell("rdma link add " + goingDevice + " type " + r.driver + " netdev " + goingLink); err != nil {
		return err
	}
	var users sync.WaitGroup
	errs := make(chan error, 4)
	var connected sync.WaitGroup
	for _, l := range []*workload.Layer{workload.CM, workload.RConn, workload.RMsg, workload.RSock} {
		connected.Add(1)
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		users.Go(func() { errs <- r.use(l, random, sync.OnceFunc(connected.Done)) })
	}
	connected.Wait()
	pause(ctx, time.Duration(random.Int64N(int64(5*time.Second))))
	if random.IntN(2) == 0 {
		err = shell("ip link set " + goingLink + " down; sleep 0.2; ip link set " + goingLink + " up")
	}
	// The kernel waits until all have closed the device.
	removed := make(chan error, 1)
	go func() { removed <- shell("rdma link delete " + goingDevice) }()
	users.Wait()
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	select {
	case err2 := <-removed:
		return errors.Join(err, err2)
	case <-time.After(time.Minute):
		return errors.Join(err, errors.New("the device is there a minute after its last use"))
	}
}

// use dials until the device is active, calls connected, and does rounds until the device is gone.
func (r *removals) use(l *workload.Layer, random *rand.Rand, connected func()) (err error) {
	defer connected()
	wrong := make(chan error, 1)
	var server *workload.Server
	var s workload.Session
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ; ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		server, err = l.Listen(ctx, goingAddr+":0", func(err error) {
			if errors.Is(err, workload.ErrData) {
				select {
				case wrong <- err:
				default:
				}
			}
		})
		if err != nil {
			continue
		}
		if s, err = l.Dial(ctx, server.Addr); err == nil {
			break
		}
		server.Close()
	}
	connected()
	for err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = s.Round(ctx, 1<<16)
		cancel()
		if err == nil {
			r.rest(random)
		}
	}
	if s != nil {
		s.Close()
		server.Close()
	}
	select {
	case err = <-wrong:
	default:
	}
	if errors.Is(err, workload.ErrData) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%s on %s: %w", l.Name, goingDevice, err)
	}
	return nil
}

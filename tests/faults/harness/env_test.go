package harness

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// allFaults reports whether all faults are run, however long they take.
var allFaults = os.Getenv("FAULTS") == "all"

// roundSize is how many bytes a round transfers in each direction.
const roundSize = 64 << 10

var layers = []*workload.Layer{workload.CM, workload.RConn, workload.RMsg, workload.RSock}

// fault is a fault that is caused in the same way on all layers and devices.
type fault struct {
	title  string
	device string // empty for all
	quick  string // layers on which a plain go test runs it; empty for none
	long   bool   // not run with -short
	run    func(*env)
	only   string // layers; empty for all
	wired  bool   // over a wire
}

// env is one fault on one layer and device.
type env struct {
	*testing.T
	title   string
	layer   *workload.Layer
	device  string
	results int
	open    map[workload.Session]bool // to be closed if the test fails
	addr    string                    // where the peer listens
	wire    *wire                     // if there is one
}

// runFault runs a fault on all devices and layers.
func runFault(t *testing.T, f fault) {
	t.Helper()
	labtest.RequireGuest(t, "turns the machine upside down")
	if f.long && testing.Short() {
		t.Skip("takes long")
	}
	for _, device := range labtest.Addressed() {
		if f.device != "" && f.device != device || f.wired && isAdapter(device) { // whose QPs send by no link
			continue
		}
		t.Run(device, func(t *testing.T) {
			for _, l := range layers {
				if !allFaults && !slices.Contains(strings.Fields(f.quick), l.Name) {
					continue
				}
				if f.only != "" && !slices.Contains(strings.Fields(f.only), l.Name) {
					continue
				}
				t.Run(l.Name, func(t *testing.T) {
					e := &env{T: t, title: f.title, layer: l, device: device, addr: labtest.AddrOf(device) + ":0", open: map[workload.Session]bool{}}
					warmUp(t)
					labtest.DriverLog(t)
					if f.wired {
						e.wire = newWire(t, device)
						e.addr = e.wire.b + ":0"
					}
					before := labtest.Inventory(t)
					f.run(e)
					if e.results == 0 && !t.Failed() && !t.Skipped() {
						t.Error("nothing was found out")
					}
					labtest.CheckLeaks(t, before)
				})
			}
		})
	}
}

// warmUp makes the runtime and the kernel allocate what they allocate only once.
var warmUp = func() func(t testing.TB) {
	var once sync.Once
	return func(t testing.TB) {
		once.Do(func() {
			for _, device := range labtest.Addressed() {
				for _, l := range layers {
					c := newChild(t, l, labtest.AddrOf(device)+":0")
					s := labtest.Must(l.Dial(t.Context(), c.addr))(t)
					load := newLoad(s)
					labtest.Check(t, load.waitRounds(2))
					load.end()
					s.Close()
					c.kill()
				}
			}
			labtest.SettledInventory(t)
		})
	}
}()

// serve starts a peer, which is killed at the end of the test.
func (e *env) serve(more ...func(*exec.Cmd)) *child {
	e.Helper()
	return newChild(e, e.layer, e.addr, more...)
}

// dial connects to a peer.
func (e *env) dial(c *child) workload.Session {
	e.Helper()
	ctx := labtest.Within(e, roundTimeout)
	s := labtest.Must(e.layer.Dial(ctx, c.addr))(e)
	e.open[s] = true
	e.Cleanup(func() {
		if e.open[s] {
			s.Close()
		}
	})
	return s
}

// reconnect returns how long it takes to make a new connection and do a round.
func (e *env) reconnect(c *child) time.Duration {
	e.Helper()
	start := time.Now()
	s := e.dial(c)
	ctx := labtest.Within(e, roundTimeout)
	if err := s.Round(ctx, roundSize); err != nil {
		e.Errorf("a new connection: %v", err)
	}
	took := time.Since(start)
	e.close(s)
	return took
}

// startLoad starts a peer and a load on a session with it.
func (e *env) startLoad(more ...func(*exec.Cmd)) (*child, *load) {
	e.Helper()
	c := e.serve(more...)
	l := newLoad(e.dial(c))
	labtest.Check(e, l.waitRounds(5))
	l.takeLongest()
	return c, l
}

// expectContinues checks that a load does n more rounds, ends it, and adds a row.
func (e *env) expectContinues(c *child, l *load, n int64) {
	e.Helper()
	err := l.waitRounds(n)
	took := l.takeLongest()
	if err == nil {
		err = l.end()
	}
	if err != nil {
		e.Error(err)
	}
	e.close(l.s)
	e.finish(c, "continues", took)
}

// expectStillWorks checks that a load still does rounds, ends it, and adds a row.
func (e *env) expectStillWorks(c *child, l *load, saw string, took time.Duration) {
	e.Helper()
	if err := l.waitRounds(3); err != nil {
		e.Error(err)
	}
	if err := l.end(); err != nil {
		e.Error(err)
	}
	e.close(l.s)
	e.finish(c, saw, took)
}

// finish checks that a peer accepts a new connection, kills it, and adds a row.
func (e *env) finish(c *child, saw string, took time.Duration) {
	e.Helper()
	again := e.reconnect(c)
	c.kill()
	e.result(saw, took, again)
}

// close checks that a session closes soon, and without error or with one of those given.
func (e *env) close(s workload.Session, or ...error) {
	e.Helper()
	start := time.Now()
	delete(e.open, s)
	if err := s.Close(); err != nil && !slices.ContainsFunc(or, func(target error) bool { return errors.Is(err, target) }) {
		e.Errorf("Close: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		e.Errorf("Close took %v", took)
	}
}

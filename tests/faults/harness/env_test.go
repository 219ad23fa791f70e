package harness

import (
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

// all reports whether all faults are run, however long they take.
var all = os.Getenv("FAULTS") == "all"

// chunk is how many bytes a round transfers in each direction.
const chunk = 64 << 10

var layers = []*workload.Layer{workload.CM, workload.RConn, workload.RMsg, workload.RSock}

// fault is a fault that is caused in the same way on all layers and devices.
type fault struct {
	title string
	quick string // layers on which a plain go test runs it; empty for none
	run   func(*env)
	only  string // layers; empty for all
	wired bool   // over a wire
}

// env is one fault on one layer and device.
type env struct {
	*testing.T
	title  string
	layer  *workload.Layer
	device string
	rows   int
	open   map[workload.Session]bool // to be closed if the test fails
	addr   string                    // where the peer listens
	wire   *wire                     // if there is one
}

// each runs a fault on all devices and layers.
func each(t *testing.T, f fault) {
	t.Helper()
	labtest.Require(t)
	if os.Getenv("LAB") == "host" {
		t.Skip("turns the machine upside down")
	}
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		t.Run(device, func(t *testing.T) {
			for _, l := range layers {
				if !all && !slices.Contains(strings.Fields(f.quick), l.Name) {
					continue
				}
				if f.only != "" && !slices.Contains(strings.Fields(f.only), l.Name) {
					continue
				}
				t.Run(l.Name, func(t *testing.T) {
					e := &env{T: t, title: f.title, layer: l, device: device, addr: labtest.AddrOf(device) + ":0", open: map[workload.Session]bool{}}
					warm(t)
					if f.wired {
						e.wire = newWire(t, device)
						e.addr = e.wire.b + ":0"
					}
					before := labtest.Inventory(t)
					f.run(e)
					if e.rows == 0 && !t.Failed() && !t.Skipped() {
						t.Error("nothing was found out")
					}
					labtest.SameInventory(t, before)
				})
			}
		})
	}
}

// warm makes the runtime and the kernel allocate what they allocate only once.
var warm = func() func(t testing.TB) {
	var once sync.Once
	return func(t testing.TB) {
		once.Do(func() {
			for _, device := range []string{labtest.RXE, labtest.SIW} {
				for _, l := range layers {
					c := newChild(t, l, labtest.AddrOf(device)+":0")
					s := labtest.Must(l.Dial(t.Context(), c.addr))(t)
					load := newLoad(s)
					labtest.Check(t, load.more(2))
					load.end()
					s.Close()
					c.kill()
				}
			}
			labtest.Settled(t)
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
	ctx := labtest.Within(e, patience)
	s := labtest.Must(e.layer.Dial(ctx, c.addr))(e)
	e.open[s] = true
	e.Cleanup(func() {
		if e.open[s] {
			s.Close()
		}
	})
	return s
}

// again returns how long it takes to make a new connection and do a round.
func (e *env) again(c *child) time.Duration {
	e.Helper()
	start := time.Now()
	s := e.dial(c)
	ctx := labtest.Within(e, patience)
	if err := s.Round(ctx, chunk); err != nil {
		e.Errorf("a new connection: %v", err)
	}
	took := time.Since(start)
	e.close(s)
	return took
}

// under starts a peer and a load on a session with it.
func (e *env) under(more ...func(*exec.Cmd)) (*child, *load) {
	e.Helper()
	c := e.serve(more...)
	l := newLoad(e.dial(c))
	labtest.Check(e, l.more(5))
	l.slowest()
	return c, l
}

// goesOn checks that a load does n more rounds, ends it, and adds a row.
func (e *env) goesOn(c *child, l *load, n int64) {
	e.Helper()
	err := l.more(n)
	took := l.slowest()
	if err == nil {
		err = l.end()
	}
	if err != nil {
		e.Error(err)
	}
	e.close(l.s)
	e.ends(c, "continues", took)
}

// survived checks that a load still does rounds, ends it, and adds a row.
func (e *env) survived(c *child, l *load, saw string, took time.Duration) {
	e.Helper()
	if err := l.more(3); err != nil {
		e.Error(err)
	}
	if err := l.end(); err != nil {
		e.Error(err)
	}
	e.close(l.s)
	e.ends(c, saw, took)
}

// ends checks that a peer accepts a new connection, kills it, and adds a row.
func (e *env) ends(c *child, saw string, took time.Duration) {
	e.Helper()
	again := e.again(c)
	c.kill()
	e.row(saw, took, again)
}

// close checks that a session closes without error, and soon.
func (e *env) close(s workload.Session) {
	e.Helper()
	start := time.Now()
	delete(e.open, s)
	if err := s.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		e.Errorf("Close took %v", took)
	}
}

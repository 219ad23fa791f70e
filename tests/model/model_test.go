package model

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var (
	duration = flag.Duration("model", 5*time.Second, "how long TestModel runs on a device")
	seed     = flag.Uint64("seed", 0, "where TestModel starts; 0 is somewhere")
)

// TestModel makes random calls.
func TestModel(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		from := *seed
		if from == 0 {
			from = rand.Uint64()
		}
		t.Logf("-seed %d", from)
		runs, calls := 0, 0
		for end := time.Now().Add(*duration); runs == 0 || !testing.Short() && time.Now().Before(end); runs++ {
			r := rand.New(rand.NewPCG(from+uint64(runs), 0))
			in := make([]byte, 1+r.IntN(4000))
			for i := range in {
				in[i] = byte(r.Uint32())
			}
			calls += runInput(t, device, in)
		}
		t.Logf("%d runs, %d calls", runs, calls)
	})
}

// runInput makes the calls of an input on a device, with new connections.
func runInput(t *testing.T, device string, in []byte) (calls int) {
	before := labtest.SettledInventory(t)
	ok := t.Run(device, func(t *testing.T) {
		w := newState(t, device, in)
		for range 2 {
			w.links = append(w.links, newLink(w))
		}
		w.run()
		calls = w.calls
	})
	if !ok {
		t.FailNow()
	}
	labtest.CheckLeaks(t, before)
	return calls
}

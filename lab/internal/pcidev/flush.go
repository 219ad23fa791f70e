//go:build linux

package pcidev

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Failing is a QP in the error state, or on its way there.
type Failing interface {
	// Flush completes the posted receives with WCFlushErr. It reports false if the QP has left the
	// error state.
	Flush() bool
}

// Flusher flushes receives that the guest posts to QPs in the error state. A receive may have no doorbell,
// only a doorbell record in memory, so that the flusher polls while there are such QPs.
type Flusher struct {
	mu      sync.Mutex
	qps     map[Failing]struct{}
	running bool
	ended   bool
	done    sync.WaitGroup
}

const flushInterval = 2 * time.Millisecond

// Add makes the flusher poll a QP. It may be called with locks of the engine held.
func (f *Flusher) Add(q Failing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if f.qps == nil {
		f.qps = map[Failing]struct{}{}
	}
	f.qps[q] = struct{}{}
	if !f.running {
		f.running = true
		f.done.Go(f.run)
	}
}

// Remove makes the flusher forget a QP.
func (f *Flusher) Remove(q Failing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.qps, q)
}

// End ends the flusher.
func (f *Flusher) End() {
	f.mu.Lock()
	f.ended = true
	clear(f.qps)
	f.mu.Unlock()
	f.done.Wait()
}

func (f *Flusher) run() {
	for {
		time.Sleep(flushInterval)
		f.mu.Lock()
		if len(f.qps) == 0 {
			f.running = false
			f.mu.Unlock()
			return
		}
		list := slices.Collect(maps.Keys(f.qps))
		f.mu.Unlock()
		for _, q := range list {
			if !q.Flush() {
				f.Remove(q)
			}
		}
	}
}

//go:build linux

package connectx

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// failing is a QP in the error state, or on its way there.
type failing interface {
	// flush completes the posted receives with WCFlushErr. It reports false if the QP has left the
	// error state.
	flush() bool
}

// flusher flushes receives that the guest posts to QPs in the error state. A receive has no doorbell,
// only a doorbell record in memory, so that the flusher polls while there are such QPs.
type flusher struct {
	mu      sync.Mutex
	qps     map[failing]struct{}
	running bool
	ended   bool
	done    sync.WaitGroup
}

const flushInterval = 2 * time.Millisecond

// add makes the flusher poll a QP. It may be called with locks of the engine held.
func (f *flusher) add(q failing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if f.qps == nil {
		f.qps = map[failing]struct{}{}
	}
	f.qps[q] = struct{}{}
	if !f.running {
		f.running = true
		f.done.Go(f.run)
	}
}

func (f *flusher) remove(q failing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.qps, q)
}

func (f *flusher) end() {
	f.mu.Lock()
	f.ended = true
	clear(f.qps)
	f.mu.Unlock()
	f.done.Wait()
}

func (f *flusher) run() {
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
			if !q.flush() {
				f.remove(q)
			}
		}
	}
}

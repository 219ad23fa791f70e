package harness

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/tests/workload"
)

// load does rounds of a session, one after another, until one fails.
type load struct {
	s      workload.Session
	limit  time.Duration // of a round
	rounds atomic.Int64
	stop   atomic.Bool
	done   chan struct{}
	turn   sync.Mutex  // held by a round, or to prevent rounds
	failed atomic.Bool // set while turn is held

	// After done:
	err  error
	when time.Time // when the last round ended

	mu      sync.Mutex
	longest time.Duration
	began   time.Time // when the current round began
}

// patience is how long a round may take. No round takes that long unless it hangs.
const patience = 60 * time.Second

func newLoad(s workload.Session) *load { return newLoadWithin(s, patience) }

func newLoadWithin(s workload.Session, limit time.Duration) *load {
	l := &load{s: s, limit: limit, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for !l.stop.Load() && l.err == nil {
			l.err = l.round()
		}
	}()
	return l
}

func (l *load) round() error {
	l.turn.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), l.limit)
	defer cancel()
	l.mu.Lock()
	l.began = time.Now()
	l.mu.Unlock()
	err := l.s.Round(ctx, chunk)
	if err != nil {
		l.failed.Store(true)
	}
	l.turn.Unlock()
	l.mu.Lock()
	l.when = time.Now()
	l.longest = max(l.longest, l.when.Sub(l.began))
	l.mu.Unlock()
	if err == nil {
		l.rounds.Add(1)
	}
	return err
}

// more waits for n more rounds, or for the end.
func (l *load) more(n int64) error {
	for until := l.rounds.Load() + n; l.rounds.Load() < until; {
		select {
		case <-l.done:
			return fmt.Errorf("after %d rounds: %w", l.rounds.Load(), l.err)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// slowest returns how long the longest round since the last call took.
func (l *load) slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := l.longest
	l.longest = 0
	return most
}

// end stops the load after the current round.
func (l *load) end() error {
	l.stop.Store(true)
	<-l.done
	return l.err
}

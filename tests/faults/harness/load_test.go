package harness

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/tests/workload"
)

// load is rounds of a session, one after the other, until one fails.
type load struct {
	s      workload.Session
	limit  time.Duration // of a round
	rounds atomic.Int64
	stop   atomic.Bool
	done   chan struct{}
	turn   sync.Mutex  // held by a round, or who would have none
	failed atomic.Bool // set in a round's turn

	// After done:
	err  error
	when time.Time // the last round ended

	mu      sync.Mutex
	longest time.Duration
	began   time.Time // the round under way
}

// patience is how long a round may take: nothing here takes so long unless it
// hangs.
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

// slowest is how long the longest round took, of those since the last call.
func (l *load) slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := l.longest
	l.longest = 0
	return most
}

// end stops after the round under way.
func (l *load) end() error {
	l.stop.Store(true)
	<-l.done
	return l.err
}

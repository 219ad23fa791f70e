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
	s       workload.Session
	limit   time.Duration // of a round
	rounds  atomic.Int64
	stop    atomic.Bool
	done    chan struct{}
	roundMu sync.Mutex  // held during a round, or to prevent rounds
	failed  atomic.Bool // set while roundMu is held

	// After done:
	err     error
	endTime time.Time // when the last round ended

	mu      sync.Mutex
	longest time.Duration
	began   time.Time // when the current round began
}

// roundTimeout is how long a round may take. No round takes that long unless it hangs.
const roundTimeout = 60 * time.Second

func newLoad(s workload.Session) *load { return newLoadTimeout(s, roundTimeout) }

func newLoadTimeout(s workload.Session, limit time.Duration) *load {
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
	l.roundMu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), l.limit)
	defer cancel()
	l.mu.Lock()
	l.began = time.Now()
	l.mu.Unlock()
	err := l.s.Round(ctx, roundSize)
	if err != nil {
		l.failed.Store(true)
	}
	l.roundMu.Unlock()
	l.mu.Lock()
	l.endTime = time.Now()
	l.longest = max(l.longest, l.endTime.Sub(l.began))
	l.mu.Unlock()
	if err == nil {
		l.rounds.Add(1)
	}
	return err
}

// waitRounds waits for n more rounds, or for the end.
func (l *load) waitRounds(n int64) error {
	for until := l.rounds.Load() + n; l.rounds.Load() < until; {
		select {
		case <-l.done:
			return fmt.Errorf("after %d rounds: %w", l.rounds.Load(), l.err)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// takeLongest returns how long the longest round since the last call took.
func (l *load) takeLongest() time.Duration {
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

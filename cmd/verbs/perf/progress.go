package perf

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress is a line on a terminal that says how far a run is.
type progress struct {
	out *os.File // nil if it is no terminal

	mu   sync.Mutex
	stop func()
}

func newProgress(f *os.File) *progress {
	if !term.IsTerminal(int(f.Fd())) {
		f = nil
	}
	return &progress{out: f}
}

// watch follows a run until clear, or another.
func (p *progress) watch(s *side) {
	if p.out == nil {
		return
	}
	p.clear()
	started := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			p.mu.Lock()
			if p.stop != nil {
				fmt.Fprintf(p.out, "\r%v: %s\x1b[K", &s.work, s.progress(time.Since(started)))
			}
			p.mu.Unlock()
		}
	}()
	p.mu.Lock()
	p.stop = func() { tick.Stop(); close(ended) }
	p.mu.Unlock()
}

// clear ends and wipes the line.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
		p.stop = nil
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

func (s *side) progress(elapsed time.Duration) string {
	n := s.count.Load()
	if s.Duration > 0 {
		return fmt.Sprintf("%d messages, %d of %d s", n, elapsed/time.Second, s.Duration/time.Second)
	}
	all := uint64(s.Iters) * uint64(s.QPs)
	return fmt.Sprintf("%d of %d messages, %d%%", n, all, 100*n/all)
}

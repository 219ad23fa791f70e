package perf

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// showProgress writes the progress of the run to out, if out is a terminal, until stop is called,
// which clears the line.
func (s *side) showProgress(out *os.File) (stop func()) {
	if !term.IsTerminal(int(out.Fd())) {
		return func() {}
	}
	var writer sync.WaitGroup
	stopped := make(chan struct{})
	writer.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for started := time.Now(); ; {
			select {
			case <-stopped:
				fmt.Fprint(out, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(out, "\r%v: %s\x1b[K", &s.work, s.progress(time.Since(started)))
			}
		}
	})
	return sync.OnceFunc(func() { close(stopped); writer.Wait() })
}

func (s *side) progress(elapsed time.Duration) string {
	n := s.count.Load()
	rate := fmt.Sprintf("%.3f Gbit/s", float64(n)*float64(s.Size)*8/1e9/elapsed.Seconds())
	if s.Mode == modeLat {
		rate = fmt.Sprintf("%.0f messages/s", float64(n)/elapsed.Seconds())
	}
	if s.Duration > 0 {
		return fmt.Sprintf("%d messages, %d of %d s, %s", n, elapsed/time.Second, s.Duration/time.Second, rate)
	}
	all := uint64(s.Iters) * uint64(s.QPs)
	return fmt.Sprintf("%d of %d messages, %d%%, %s", n, all, 100*n/all, rate)
}

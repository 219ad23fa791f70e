package perf

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// interval holds what a client sent in a part of a run, as far as it knows: completions may be of
// many messages.
type interval struct {
	From      float64    `json:"from"` // seconds since the run began
	To        float64    `json:"to"`
	Messages  uint64     `json:"messages"`
	MeanUS    float64    `json:"mean_us,omitempty"` // of latencies, also those of lost datagrams
	Bandwidth *bandwidth `json:"bandwidth,omitempty"`
}

// newInterval returns what happened between two times since the begin of the run.
func (s *session) newInterval(from, to time.Duration, messages uint64) interval {
	i := interval{From: from.Seconds(), To: to.Seconds(), Messages: messages}
	took := to - from
	switch {
	case s.Mode == modeBW:
		i.Bandwidth = new(bandwidth)
		i.Bandwidth.add(messages, s.Size, took.Seconds())
	case messages > 0:
		i.MeanUS = float64(took) / 1e3 / float64(messages) / float64(s.ways())
	}
	return i
}

// every calls report each time that a period of the run ends, and when stop is called for the rest, with
// the time since the run began.
func every(period time.Duration, report func(now time.Duration)) (stop func()) {
	var reporter sync.WaitGroup
	stopped := make(chan struct{})
	start := time.Now()
	reporter.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for more := true; more; {
			select {
			case <-stopped:
				more = false
			case <-tick.C:
			}
			report(time.Since(start))
		}
	})
	return sync.OnceFunc(func() { close(stopped); reporter.Wait() })
}

// reportIntervals calls report for each period of the run.
func (s *session) reportIntervals(period time.Duration, report func(interval)) (stop func()) {
	last, before := time.Duration(0), s.count.Load()
	return every(period, func(now time.Duration) {
		n := s.count.Load()
		if now > last {
			report(s.newInterval(last, now, n-before))
		}
		last, before = now, n
	})
}

func (i interval) String() string {
	text := fmt.Sprintf("%9.2f-%.2f s: %d", i.From, i.To, i.Messages)
	switch {
	case i.Bandwidth != nil:
		text += fmt.Sprintf(", %.2f MiB/s, %.3f Gbit/s", i.Bandwidth.Mebi, i.Bandwidth.Gbit)
	case i.MeanUS > 0:
		text += fmt.Sprintf(", mean %.2f us", i.MeanUS)
	}
	return text
}

// showProgress writes the progress of the run to out, if out is a terminal, until stop is called,
// which clears the line.
func (s *session) showProgress(out *os.File) (stop func()) {
	if !term.IsTerminal(int(out.Fd())) {
		return func() {}
	}
	end := every(200*time.Millisecond, func(now time.Duration) {
		fmt.Fprintf(out, "\r%v: %s\x1b[K", &s.work, s.progress(now))
	})
	return func() { end(); fmt.Fprint(out, "\r\x1b[K") }
}

func (s *session) progress(elapsed time.Duration) string {
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

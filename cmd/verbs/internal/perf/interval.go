package perf

import (
	"fmt"
	"sync"
	"time"
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

// reportIntervals calls report each time that a period of the run ends, and when stop is called for
// the rest. It never does if period is 0.
func (s *session) reportIntervals(period time.Duration, report func(interval)) (stop func()) {
	if period == 0 {
		return func() {}
	}
	var reporter sync.WaitGroup
	stopped := make(chan struct{})
	start, last, before := time.Now(), time.Duration(0), s.count.Load()
	reporter.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for more := true; more; {
			select {
			case <-stopped:
				more = false
			case <-tick.C:
			}
			now, n := time.Since(start), s.count.Load()
			if now > last {
				report(s.newInterval(last, now, n-before))
			}
			last, before = now, n
		}
	})
	return sync.OnceFunc(func() { close(stopped); reporter.Wait() })
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

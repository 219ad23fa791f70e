package perf

import (
	"fmt"
	"sync"
	"time"
)

// interval holds what a client is known to have sent in a part of a run: one completion may stand
// for many messages.
type interval struct {
	From      float64    `json:"from"` // seconds since the run began
	To        float64    `json:"to"`
	Messages  uint64     `json:"messages"`
	MeanUS    float64    `json:"mean_us,omitempty"` // of latencies; a lost datagram counts as its timeout
	Bandwidth *bandwidth `json:"bandwidth,omitempty"`
}

// newInterval returns the interval between two times since the run began.
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

// reportIntervals calls report for each period of the run, and for the rest when stop is called. It
// never does if period is 0.
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

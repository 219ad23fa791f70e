package exporter

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
)

// Source is an object that a program exports statistics of.
type Source interface {
	*rsock.Listener | *rsock.Dialer | *rmsg.Listener | *rmsg.Dialer | *rmsg.Loop | *rconn.Listener | *rconn.Dialer | *cm.Listener | *cm.Transport | *s3rdma.Server | *s3rdma.Client | *hipobj.Server
}

// NewCollector returns a collector of the statistics of a listener, dialer, loop, transport, server or
// client, including those of its connections, closed ones too. The metrics have the labels source,
// which is "listener", "dialer", "loop", "transport", "server" or "client", and name, which
// distinguishes several of these.
func NewCollector[S Source](name string, source S) prometheus.Collector {
	switch s := any(source).(type) {
	case *rsock.Listener:
		return newCollector("rsock", "listener", name, s.Stats, slices.Concat(rsockListener,
			within(rsockConns, func(s *rsock.ListenerStats) *rsock.ConnStats { return &s.Conns })))
	case *rsock.Dialer:
		return newCollector("rsock", "dialer", name, s.Stats, slices.Concat(rsockDialer,
			within(rsockConns, func(s *rsock.DialerStats) *rsock.ConnStats { return &s.Conns })))
	case *rmsg.Listener:
		return newCollector("rmsg", "listener", name, s.Stats, slices.Concat(rmsgListener,
			within(rmsgSockets, func(s *rmsg.ListenerStats) *rmsg.ConnStats { return &s.Conns })))
	case *rmsg.Dialer:
		return newCollector("rmsg", "dialer", name, s.Stats, slices.Concat(rmsgDialer,
			within(rmsgSockets, func(s *rmsg.DialerStats) *rmsg.ConnStats { return &s.Conns })))
	case *rmsg.Loop:
		return newCollector("rmsg", "loop", name, s.Stats, rmsgLoop)
	case *rconn.Listener:
		return newCollector("rconn", "listener", name, s.Stats, slices.Concat(
			within(cmListener, func(s *rconn.ListenerStats) *cm.ListenerStats { return &s.ListenerStats }),
			within(rconnConns, func(s *rconn.ListenerStats) *rconn.Stats { return &s.Conns })))
	case *rconn.Dialer:
		return newCollector("rconn", "dialer", name, s.Stats, slices.Concat(rconnDialer,
			within(rconnConns, func(s *rconn.DialerStats) *rconn.Stats { return &s.Conns })))
	case *cm.Listener:
		return newCollector("cm", "listener", name, s.Stats, cmListener)
	case *cm.Transport:
		return newCollector("cm", "transport", name, s.Stats, cmTransport)
	case *s3rdma.Server:
		return newCollector("s3rdma", "server", name, s.Stats, s3Server)
	case *s3rdma.Client:
		return newCollector("s3rdma", "client", name, s.Stats, slices.Concat(s3Client, byFallback(s.Stats())))
	case *hipobj.Server:
		return newCollector("hipobj", "server", name, s.Stats, hipobjServer)
	}
	panic("unreachable")
}

// metric is one of the metrics made of statistics of type S.
type metric[S any] struct {
	name, help string
	typ        prometheus.ValueType
	value      func(*S) float64
	labels     []string // pairs of a name and a value
}

// within returns the metrics of statistics that are part of others, with more labels.
func within[S, Part any](metrics []metric[Part], part func(*S) *Part, labels ...string) (list []metric[S]) {
	for _, m := range metrics {
		list = append(list, metric[S]{m.name, m.help, m.typ, func(s *S) float64 { return m.value(part(s)) }, slices.Concat(m.labels, labels)})
	}
	return list
}

// collector is a [prometheus.Collector] of statistics of type S.
type collector[S any] struct {
	stats   func() S
	metrics []metric[S]
	descs   []*prometheus.Desc
}

func newCollector[S any](layer, kind, name string, stats func() S, metrics []metric[S]) prometheus.Collector {
	c := &collector[S]{stats: stats, metrics: metrics}
	for _, m := range metrics {
		labels := prometheus.Labels{"source": kind, "name": name}
		for i := 0; i < len(m.labels); i += 2 {
			labels[m.labels[i]] = m.labels[i+1]
		}
		c.descs = append(c.descs, prometheus.NewDesc("verbs_"+layer+"_"+m.name, m.help, nil, labels))
	}
	return c
}

func (c *collector[S]) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

func (c *collector[S]) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	for i, m := range c.metrics {
		out <- prometheus.MustNewConstMetric(c.descs[i], m.typ, m.value(&s))
	}
}

// number is the type of a statistic.
type number interface{ ~int | ~int64 | ~uint64 }

// count and level return a metric that only grows, and one that does not.
func count[S any, N number](name, help string, value func(*S) N, labels ...string) metric[S] {
	return metric[S]{name, help, counter, func(s *S) float64 { return float64(value(s)) }, labels}
}

func level[S any, N number](name, help string, value func(*S) N, labels ...string) metric[S] {
	return metric[S]{name, help, gauge, func(s *S) float64 { return float64(value(s)) }, labels}
}

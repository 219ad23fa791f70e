package perf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// outcome holds the reports of both sides after a run.
type outcome struct {
	own, peer report
	hist      *latency.Histogram // of a latency test's client
}

// run makes a run with the peer: both sides get ready, run the test and compare. A client requests
// the run, a server has received the request. onStart, if any, is called when both are ready,
// and the function that it returns when this side's part has ended.
func run(ctx context.Context, w work, ctl *control, client bool, onStart func(*session) (onEnd func())) (r *result, err error) {
	s, err := newSession(ctx, w, ctl, client)
	defer func() { err = s.close(err) }()
	switch {
	case err != nil:
	case client:
		s.requested = true
		err = s.requestRun()
	default:
		err = s.offer()
	}
	if err == nil {
		err = s.exchangeStart()
	}
	if err != nil {
		return nil, s.cause(err)
	}
	onEnd := func() {}
	if onStart != nil {
		onEnd = onStart(s)
	}
	o, err := s.runTest(onEnd)
	if err != nil {
		return nil, err
	}
	r = newResult(s, o)
	if s.client && s.Mode == modeLat && r.Latency == nil {
		return nil, fmt.Errorf("%v: none of %d datagrams was answered: does the path carry packets of that size, and UD?", &s.work, r.Sent)
	}
	return r, s.compare(o)
}

// runTest runs the test when both sides are ready, and exchanges reports.
func (s *session) runTest(onEnd func()) (o outcome, err error) {
	took, hist, err := s.part()
	onEnd()
	if err != nil {
		return o, err
	}
	if err := s.waitDone(); err != nil {
		return o, err
	}
	o.hist = hist
	o.own = report{Sent: s.posted(), Received: s.counted(), Seconds: took.Seconds(), Damage: s.settle()}
	if err := s.ctl.send(message{Report: &o.own}); err != nil {
		return o, err
	}
	o.peer, err = next(s.remote, s.reports, peerTimeout+settleDelay, "report")
	return o, err
}

// part does the part of this side in a run. It returns how long this side has sent, and the
// latencies that it has measured, if any.
func (s *session) part() (took time.Duration, hist *latency.Histogram, err error) {
	defer s.watch()()
	switch {
	case !s.sends() && !s.receives(): // the peer does all the work
		s.waiting.Store(true)
		err = errors.Join(s.ctl.send(message{Done: &done{}}), s.waitDone())
	case s.Mode == modeBW:
		defer s.lockThread()()
		took, err = newBW(s).run()
	case s.client:
		defer s.lockThread()()
		took, hist, err = newLat(s).ping()
	default:
		defer s.lockThread()()
		err = newLat(s).answer()
	}
	if err != nil {
		err = s.cause(err) // the watch may know the cause
	}
	return took, hist, err
}

// settleDelay is how long sent data may take to arrive in memory.
const settleDelay = 5 * time.Second

// settle calls damage until all data has arrived: an RDMA WRITE over iWARP completes when
// it has been sent, and the report of its sender may overtake it.
func (s *session) settle() (damage string) {
	for end := time.Now().Add(settleDelay); ; time.Sleep(time.Millisecond) {
		if damage = s.damage(s.sent); damage == "" || time.Now().After(end) {
			return damage
		}
	}
}

// close ends a run: it sends err, if any, to a peer that knows of the run, stops reading from the
// control connection and closes the objects.
func (s *session) close(err error) error {
	if err != nil && s.requested {
		s.ctl.sendError(err)
	}
	s.cancel(nil)
	err = errors.Join(err, s.objects.Close())
	s.reader.Wait()
	return err
}

// compare returns an error unless the counts of both sides agree.
func (s *session) compare(o outcome) error {
	var wrong []string
	check := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	if !s.op.datagram && (s.op.receives || s.op.atomic) {
		check(o.peer.Received != o.own.Sent, "%d were sent and the peer received %d", o.own.Sent, o.peer.Received)
		check(o.own.Received != o.peer.Sent, "the peer sent %d and %d were received", o.peer.Sent, o.own.Received)
	}
	if s.answered() && !s.op.datagram {
		check(o.peer.Sent != o.own.Sent, "%d were sent and the peer answered %d", o.own.Sent, o.peer.Sent)
	}
	check(o.peer.Received > o.own.Sent || s.op.receives && o.own.Received > o.peer.Sent, "more came than was sent")
	check(o.peer.Damage != "", "the peer got damaged data: %s", o.peer.Damage)
	check(o.own.Damage != "", "damaged data: %s", o.own.Damage)
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%v: %s", &s.work, strings.Join(wrong, "; "))
}

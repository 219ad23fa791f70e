package harness

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/tests/workload"
	"github.com/goverbs/verbs/uverbs"
)

// dialEndpoint starts a peer, and returns a session with it that the test drives itself.
func (e *env) dialEndpoint(opt func(*cm.Options)) (*child, *workload.Endpoint) {
	e.Helper()
	c := e.serve()
	ctx := labtest.Within(e, roundTimeout)
	return c, labtest.Must(workload.DialCM(ctx, c.addr, opt))(e)
}

// closeAll closes objects that do not belong to a session.
func (e *env) closeAll(all ...io.Closer) {
	e.Helper()
	for _, c := range all {
		if err := c.Close(); err != nil {
			e.Error(err)
		}
	}
}

// emptyWrite returns a small request that has no effect on a session.
func emptyWrite(h *workload.Endpoint, id uint64) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: make([]byte, 8), RemoteAddr: h.Addr, RKey: h.RKey}
}

// TestCQOverflow causes more completions than the CQ holds: the CQ fails, which an
// asynchronous event reports.
func TestCQOverflow(t *testing.T) {
	labtest.RequireKernel(t)
	runFault(t, fault{title: "more completions than the CQ holds", quick: "cm", only: "cm", run: func(e *env) {
		dev := labtest.OpenDevice(e, e.device)
		labtest.NeedsOverflow(e, e.device)
		pd := labtest.Must(dev.AllocPD())(e)
		cq := labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: 8}))(e)
		c, h := e.dialEndpoint(func(o *cm.Options) { o.PD, o.SendCQ = pd, cq })
		ctx := labtest.Within(e, roundTimeout)
		start := time.Now()
		n := cq.Cap() + 8
		for i := 0; i < n; i++ {
			if _, err := h.QP.PostSend(emptyWrite(h, uint64(i))); err != nil {
				break // siw ends the QP then
			}
		}
		saw := ""
		for ev, err := range dev.AsyncEvents(ctx) {
			if err != nil {
				e.Fatal(err)
			}
			if ev.Type == verbs.EventCQErr {
				if ev.CQ != cq {
					e.Errorf("event of %v", ev.CQ)
				}
				saw = "verbs.EventCQErr"
				break
			}
			e.Logf("event %v", ev.Type)
		}
		took := time.Since(start)
		wcs := make([]verbs.WC, 2*n)
		most := cq.Cap()
		switch e.device {
		case labtest.MLX5:
			most++ // mlx5_ib says one less than the entries
		case labtest.SIW:
			most = n // siw writes on where the poll has made room
		}
		got := cq.Poll(wcs)
		if got > most {
			e.Errorf("%d completions of a CQ of %d", got, most)
		}
		for i := 1; i < got; i++ {
			if wcs[i].ID <= wcs[i-1].ID {
				e.Errorf("a completion of %d after that of %d", wcs[i].ID, wcs[i-1].ID)
			}
		}
		e.close(h)
		e.closeAll(cq, pd)
		dev.Close()
		e.finish(c, saw, took)
	}})
}

// TestNoReceive sends messages for which no receive is posted. On rxe the sender gives up
// after the requested retries; on siw the connection ends.
func TestNoReceive(t *testing.T) {
	runFault(t, fault{title: "messages that find no receive", quick: "cm", only: "cm", run: func(e *env) {
		if labtest.Driver(e, e.device) == "erdma" {
			e.Skip("the messages wait, as far as is known: iWARP has no limit for them")
		}
		const once = 1 // each side sets the other's
		ctx := labtest.Within(e, roundTimeout)
		ep, peer := labtest.Connect(ctx, e, e.addr, cm.Options{RNRRetryCount: once}, cm.Options{RNRRetryCount: once})
		start := time.Now()
		var err error
		for err == nil {
			wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("unexpected")}
			if _, err = ep.QP.PostSend(wr); err != nil {
				break
			}
			var wc [1]verbs.WC
			if _, err = ep.SendCQ.PollWait(ctx, wc[:]); err == nil {
				err = wc[0].Err()
			}
		}
		if e.device == labtest.SIW { // its event may arrive after the failure
			select {
			case <-ep.Done():
			case <-ctx.Done():
			}
		}
		if ep.Err() != nil {
			err = errors.Join(ep.Err(), err)
		}
		took := time.Since(start)
		saw := e.expect(wantErrors{"cm": {verbs.WCRNRRetryExcErr}, "siw0 cm": {verbs.ErrDisconnected}}, err)
		e.closeAll(ep, peer)
		e.finish(e.serve(), saw, took)
	}})
}

// TestLateReceive posts the receive of a message late, after a longer time than a peer may
// be silent. On siw this would end the connection.
func TestLateReceive(t *testing.T) {
	runFault(t, fault{title: "a message comes 8 s before its receive", only: "cm", run: func(e *env) {
		if labtest.IWARP(e, e.device) {
			e.Skip("iWARP has no such thing")
		}
		ctx := labtest.Within(e, roundTimeout)
		ep, peer := labtest.Connect(ctx, e, e.addr, cm.Options{}, cm.Options{})
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		if _, err := ep.QP.PostSend(wr); err != nil {
			e.Fatal(err)
		}
		start := time.Now()
		post := time.AfterFunc(8*time.Second, func() { peer.QP.PostRecv(verbs.RecvWR{}) })
		defer post.Stop()
		var wc [1]verbs.WC
		if _, err := ep.SendCQ.PollWait(ctx, wc[:]); err != nil || wc[0].Err() != nil {
			e.Errorf("%v, %v after %v", err, wc[0].Err(), time.Since(start))
		}
		took := time.Since(start)
		e.closeAll(ep, peer)
		e.result("continues", took, 0)
	}})
}

// TestQueueFull posts more requests than the send queue holds: those that were posted
// complete, the others are reported and can be posted later.
func TestQueueFull(t *testing.T) {
	runFault(t, fault{title: "more requests than the send queue takes", quick: "cm", only: "cm rconn", run: func(e *env) {
		if e.layer.Name == "rconn" {
			e.connQueueFull()
			return
		}
		c, h := e.dialEndpoint(func(*cm.Options) {})
		ctx := labtest.Within(e, roundTimeout)
		size := int(h.QP.Cap().MaxSendWR)
		start := time.Now()
		// All completions are polled before more is posted: the completion of a
		// request frees its slot, and the CQ holds no more than the queue.
		var next, done uint64
		const batches = 8
		wcs := make([]verbs.WC, 16)
		for range batches {
			var wrs []verbs.SendWR
			for i := range 2 * size {
				wrs = append(wrs, emptyWrite(h, next+uint64(i)))
			}
			n, err := h.QP.PostSend(wrs...)
			next += uint64(n)
			if n == 0 || n > size || !errors.Is(err, verbs.ErrQueueFull) {
				e.Fatalf("posted %d: %v", n, err)
			}
			for done < next {
				got := labtest.Must(h.SendCQ.PollWait(ctx, wcs))(e)
				for i := range wcs[:got] {
					if wcs[i].Err() != nil || wcs[i].ID != done {
						e.Fatalf("%+v in place of %d", wcs[i], done)
					}
					done++
				}
			}
		}
		took := time.Since(start) / batches
		if err := h.Round(ctx, roundSize); err != nil {
			e.Error(err)
		}
		e.close(h)
		c.kill()
		e.result("queue full, nothing lost", took, 0)
	}})
}

func (e *env) connQueueFull() {
	e.Helper()
	c := e.serve()
	s := e.dial(c)
	p := s.(*workload.Conn)
	ctx := labtest.Within(e, roundTimeout)
	theirs := p.Adverts()[0]
	start := time.Now()
	var next, full, done uint64
	wcs := make([]verbs.WC, 1)
	for done < 500 {
		err := p.Post(rconn.Write(theirs.At(0), p.Out.Span(0, 8)).With(next, verbs.SendSignaled))
		switch {
		case err == nil:
			next++
			continue
		case !errors.Is(err, verbs.ErrQueueFull):
			e.Fatal(err)
		}
		full++
		if err := p.Await(ctx, rconn.Sends, wcs); err != nil || wcs[0].Err() != nil || wcs[0].ID != done {
			e.Fatalf("%+v, %v in place of %d", wcs[0], err, done)
		}
		done++
	}
	took := time.Since(start) / time.Duration(full)
	rest := make([]verbs.WC, next-done)
	labtest.Check(e, p.Await(ctx, rconn.Sends, rest))
	if err := s.Round(ctx, roundSize); err != nil {
		e.Error(err)
	}
	e.close(s)
	c.kill()
	e.result("queue full, nothing lost", took, 0)
}

// TestSharedReceives makes two peers send more messages than their shared receive queue has
// receives. An event reports the limit. On rxe the messages wait for more receives; on siw a
// message without a receive ends its connection.
func TestSharedReceives(t *testing.T) {
	labtest.RequireKernel(t)
	runFault(t, fault{title: "a shared receive queue has no receives left", quick: "cm", only: "cm", run: func(e *env) {
		const receives, peers, each = 6, 2, 4
		ctx := labtest.Within(e, roundTimeout)
		labtest.Needs(e, e.device, uverbs.FeatureSRQ)
		dev := labtest.OpenDevice(e, e.device)
		pd := labtest.Must(dev.AllocPD())(e)
		srq := labtest.Must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 16, MaxSGE: 1, Limit: 2}))(e)
		post := func(n int) {
			if _, err := srq.PostRecv(make([]verbs.RecvWR, n)...); err != nil {
				e.Error(err)
			}
		}
		post(receives)
		channel := labtest.Must(dev.CreateCompChannel())(e)
		cq := labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: peers*each + 1, Channel: channel}))(e)
		var open []io.Closer
		var senders []*cm.Endpoint
		for range peers {
			s, peer := labtest.Connect(ctx, e, e.addr, cm.Options{PD: pd, SendCQ: cq}, cm.Options{PD: pd, SRQ: srq})
			senders, open = append(senders, s), append(open, s, peer)
		}
		start := time.Now()
		for range each {
			for _, s := range senders {
				if _, err := s.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil && e.device != labtest.SIW {
					e.Error(err)
				}
			}
		}
		for ev, err := range dev.AsyncEvents(ctx) {
			if err != nil {
				e.Fatal(err)
			}
			if ev.Type == verbs.EventSRQLimitReached && ev.SRQ == srq {
				break
			}
		}
		arrive := func(n int) {
			for ; n > 0; n-- {
				var wc [1]verbs.WC
				if _, err := cq.PollWait(ctx, wc[:]); err != nil || wc[0].Err() != nil {
					e.Errorf("%v, %v: %d messages did not arrive", err, wc[0].Err(), n)
				}
			}
		}
		saw := "continues"
		if e.device != labtest.SIW {
			arrive(receives)
			post(peers*each - receives)
			arrive(peers*each - receives)
		} else {
			select {
			case <-senders[0].Done():
				saw = e.expect(wantErrors{"cm": {verbs.ErrDisconnected}}, senders[0].Err())
			case <-senders[1].Done():
				saw = e.expect(wantErrors{"cm": {verbs.ErrDisconnected}}, senders[1].Err())
			case <-ctx.Done():
				e.Error("both connections go on")
			}
		}
		took := time.Since(start)
		e.closeAll(append(open, cq, channel, srq, pd)...)
		dev.Close()
		e.finish(e.serve(), saw, took)
	}})
}

package faults

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// requestCase is a request that must fail, and how it completes. iWARP acknowledges neither
// sends nor writes, so on siw a request that the peer refuses ends the connection, and
// requests are flushed. One that siw was sending at that moment fails itself
// (siw_qp_sq_process).
type requestCase struct {
	name     string
	pair     rdmatest.PairOptions
	run      func(t *testing.T, a, b *rdmatest.Endpoint) verbs.SendWR
	rxe, siw []verbs.WCStatus
}

var flushedStatuses = []verbs.WCStatus{verbs.WCFlushErr, verbs.WCLocQPOpErr}

// readRefused is the result of reads: the peer's response refuses them, if it arrives in time.
var readRefused = append([]verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCGeneralErr}, flushedStatuses...)

func request(op verbs.Opcode, off int, rkeyFlip uint32) func(t *testing.T, a, b *rdmatest.Endpoint) verbs.SendWR {
	return func(t *testing.T, a, b *rdmatest.Endpoint) verbs.SendWR {
		return verbs.SendWR{
			Opcode: op, SGL: []verbs.SGE{a.MR.SGE(0, 64)}, RemoteAddr: b.MR.Addr() + uint64(off), RKey: b.MR.RKey() ^ rkeyFlip,
		}
	}
}

var requestCases = []requestCase{
	{name: "write, wrong rkey", run: request(verbs.OpRDMAWrite, 0, 0x5500), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: flushedStatuses},
	{name: "write, out of range", run: request(verbs.OpRDMAWrite, 64<<10-63, 0), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: flushedStatuses},
	{name: "write, not permitted", pair: rdmatest.PairOptions{Access: verbs.AccessLocalWrite | verbs.AccessRemoteRead}, run: request(verbs.OpRDMAWrite, 0, 0), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: flushedStatuses},
	{name: "read, wrong rkey", run: request(verbs.OpRDMARead, 0, 0x5500), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: readRefused},
	{name: "read, out of range", run: request(verbs.OpRDMARead, 64<<10-63, 0), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: readRefused},
	// siw serves reads of any region to peers that have the key (siw_qp_sq_proc_tx
	// does not check the access rights).
	{name: "read, not permitted", pair: rdmatest.PairOptions{Access: verbs.AccessLocalWrite}, run: request(verbs.OpRDMARead, 0, 0), rxe: []verbs.WCStatus{verbs.WCRemAccessErr}, siw: []verbs.WCStatus{verbs.WCSuccess}},
	{name: "no receive", pair: rdmatest.PairOptions{RC: uverbs.ConnectOptions{RNRRetry: 1, MinRNRTimer: 1}}, run: request(verbs.OpSend, 0, 0),
		rxe: []verbs.WCStatus{verbs.WCRNRRetryExcErr}, siw: flushedStatuses},
	{name: "peer's QP destroyed", pair: rdmatest.PairOptions{RC: uverbs.ConnectOptions{Timeout: 8, RetryCount: 1}},
		run: func(t *testing.T, a, b *rdmatest.Endpoint) verbs.SendWR {
			if err := b.QP.Close(); err != nil {
				t.Error(err)
			}
			return request(verbs.OpRDMAWrite, 0, 0)(t, a, b)
		}, rxe: []verbs.WCStatus{verbs.WCRetryExcErr}, siw: flushedStatuses},
}

// TestFailedRequests causes errors on one connection while another continues to work.
func TestFailedRequests(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, c := range requestCases {
			t.Run(c.name, func(t *testing.T) {
				x, y := labtest.NewPair(t, device, rdmatest.PairOptions{})
				want := c.rxe
				if device == labtest.SIW {
					want = c.siw
				}
				a, b := labtest.NewPair(t, device, c.pair)
				wr := c.run(t, a, b)
				wr.Flags |= verbs.SendSignaled
				got := failure(t, a, wr, device == labtest.SIW)
				if !slices.Contains(want, got) {
					t.Errorf("completed with %v, want %v", got, want)
				}
				if got == verbs.WCSuccess {
					return
				}
				// Later requests are flushed.
				wr.ID = 77
				if _, err := a.QP.PostSend(wr); err != nil {
					t.Error(err)
				} else if wc := poll(t, a.SendCQ); wc.ID != 77 || wc.Status != verbs.WCFlushErr {
					t.Errorf("the next one: %+v, %v", wc, wc.Status)
				}
				works(t, x, y)
			})
		}
	})
}

// failure posts wr and returns how it failed. If completesSent is set, requests complete
// when they have been sent, so it tries again until one fails.
func failure(t *testing.T, a *rdmatest.Endpoint, wr verbs.SendWR, completesSent bool) verbs.WCStatus {
	t.Helper()
	for range 100 {
		if _, err := a.QP.PostSend(wr); err != nil {
			if errors.Is(err, verbs.ErrState) {
				return verbs.WCFlushErr // the connection is ending
			}
			t.Fatal(err)
		}
		if wc := poll(t, a.SendCQ); wc.Err() != nil || !completesSent {
			return wc.Status
		}
		time.Sleep(10 * time.Millisecond)
	}
	return verbs.WCSuccess
}

func poll(t *testing.T, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if cq.Poll(wc[:]) == 1 {
			return wc[0]
		}
	}
	t.Fatal("no completion")
	return wc[0]
}

// works sends a message.
func works(t *testing.T, a, b *rdmatest.Endpoint) {
	t.Helper()
	if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("still here")}); err != nil {
		t.Fatal(err)
	}
	if wc := poll(t, a.SendCQ); wc.Err() != nil {
		t.Fatal(wc.Err())
	}
	if wc := poll(t, b.RecvCQ); wc.Err() != nil || string(b.MR.Bytes()[:10]) != "still here" {
		t.Fatal(wc.Err())
	}
}

// TestCQOverrun causes more completions than a CQ holds. An event reports that the CQ has
// failed; other CQs still work.
func TestCQOverrun(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		x, y := labtest.NewPair(t, device, rdmatest.PairOptions{})
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Depth: 8}) // mlx5's send queue is full until completions are polled
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Inline: []byte("x")}
		ctx := labtest.Within(t, 10*time.Second)
		events := make(chan uverbs.AsyncEvent, 10)
		go func() {
			defer close(events)
			for e, err := range a.PD.Context().AsyncEvents(ctx) {
				if err != nil {
					return
				}
				events <- e
			}
		}()
		for n := 0; n < a.SendCQ.Cap()+10; {
			posted, err := a.QP.PostSend(wr)
			if n += posted; err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				break // the QP may fail
			}
			if ctx.Err() != nil {
				break
			}
		}
		for e := range events {
			if e.Type == verbs.EventCQErr {
				if e.CQ != a.SendCQ {
					t.Error("the event is another CQ's")
				}
				works(t, x, y)
				return
			}
		}
		t.Error("no event")
	})
}

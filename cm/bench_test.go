//go:build linux

package cm_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// BenchmarkConnection makes connections of two endpoints in this process, one after the other, and
// closes them, with CQs of their own and with common ones. Its allocations are those of both ends,
// and of the device if that is in user space. live-B and live-objects are what one end of 256 that
// are open has on Go's heap.
func BenchmarkConnection(b *testing.B) {
	for _, cqs := range []string{"own CQs", "common CQs"} {
		b.Run(cqs, func(b *testing.B) {
			labtest.Require(b)
			opt := cm.Options{SharePD: true, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}
			connect := connector(b, &opt)
			if cqs == "common CQs" {
				e, end := connect()
				defer end()
				cq := labtest.Must(e.PD.Context().CreateCQ(uverbs.CQOptions{Depth: 4096}))(b)
				defer func() { labtest.Check(b, cq.Close()) }()
				opt.SendCQ, opt.RecvCQ = cq, cq
			}
			b.ReportAllocs()
			for b.Loop() {
				_, end := connect()
				end()
			}
			const conns = 256
			var ends [conns]func()
			before := heap()
			for i := range ends {
				_, ends[i] = connect()
			}
			after := heap()
			for _, end := range ends {
				end()
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(2*conns), "live-B")
			b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/(2*conns), "live-objects")
		})
	}
}

// connector returns a function that connects two endpoints and returns the one that dialed, and a
// function that closes both.
func connector(b *testing.B, opt *cm.Options) func() (e *cm.Endpoint, end func()) {
	ctx := context.Background() // without a channel, which a wait would look at
	l := labtest.Must(cm.Listen(ctx, labtest.AddrOf(labtest.RXE)+":0"))(b)
	labtest.Close(b, l)
	addr := l.Addr().String()
	accepted := make(chan *cm.Endpoint)
	go func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return // closed
			}
			e, err := r.Accept(ctx, *opt)
			if err != nil {
				b.Error(err)
			}
			accepted <- e
		}
	}()
	return func() (*cm.Endpoint, func()) {
		d := cm.Dialer{Options: *opt}
		x, err := d.Dial(ctx, addr)
		labtest.Check(b, err)
		y := <-accepted
		return x, func() {
			labtest.Check(b, x.Close())
			<-y.Done()
			labtest.Check(b, y.Close())
		}
	}
}

func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // what the first has made unreachable by a cleanup
	runtime.ReadMemStats(&m)
	return m
}

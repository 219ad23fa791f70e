//go:build linux

package uverbs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestClockRate: the device's clock runs as fast as the system's, and only some drivers have one.
func TestClockRate(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		first, err := ctx.Clock()
		if !hasClock(ctx) {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Error(err)
			}
			return
		}
		labtest.Check(t, err)
		before := time.Now()
		time.Sleep(50 * time.Millisecond)
		second, err := ctx.Clock()
		took := time.Since(before)
		labtest.Check(t, err)
		d := first.Between(first.Cycles(), second.Cycles())
		if d < 50*time.Millisecond || d > took+50*time.Millisecond || first.Between(second.Cycles(), first.Cycles()) != -d {
			t.Errorf("the device counted %v in at most %v", d, took)
		}
		if off := first.Time(second.Cycles()).Sub(second.Time(second.Cycles())); off.Abs() > 10*time.Millisecond {
			t.Errorf("two readings differ by %v", off)
		}
	})
}

// hasClock reports whether the kernel has a clock of the device. It has none of devices in user
// space, of rxe and of siw.
func hasClock(ctx *uverbs.Context) bool { return ctx.Driver() == "mlx5" }

// TestTimestamps: completions have the time at which the device completed the request, in both
// formats, and none without the option.
func TestTimestamps(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		for _, format := range []verbs.TimestampFormat{verbs.TimestampNone, verbs.TimestampCycles, verbs.TimestampRealTime} {
			channel := labtest.Made(ctx.CreateCompChannel())(t)
			opt := uverbs.CQOptions{Depth: 16, Channel: channel, Timestamps: format}
			cq, err := ctx.CreateCQ(opt)
			infiniBand := labtest.Must(ctx.QueryPort(1))(t).LinkLayer == verbs.LinkInfiniBand // mlx5_ib: get_qp_ts_format
			if errors.Is(err, errors.ErrUnsupported) && format != verbs.TimestampNone && (!hasClock(ctx) || format == verbs.TimestampRealTime && infiniBand) {
				continue
			}
			labtest.Made(cq, err)(t)
			pd := labtest.Made(ctx.AllocPD())(t)
			mr := labtest.Made(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
			if ctx.Device().IWARP() {
				continue // a QP is no peer of its own
			}
			qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
			self := labtest.Must(qp.Addr(1))(t)
			labtest.Check(t, qp.Connect(self, self, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}))
			var last uint64
			var apart time.Duration // of the adapter's real-time clock and the system's, which nothing sets here
			for i := range 3 {
				before := time.Now()
				_, err := qp.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, RemoteAddr: mr.Addr() + 8, RKey: mr.RKey()})
				labtest.Check(t, err)
				wc := labtest.Must(cq.Next(labtest.Within(t, 10*time.Second)))(t)
				after := time.Now()
				if wc.Status != verbs.WCSuccess {
					t.Fatal(wc)
				}
				var at time.Time
				switch format {
				case verbs.TimestampNone:
					if wc.Timestamp != 0 {
						t.Errorf("timestamp %#x, without the option", wc.Timestamp)
					}
					continue
				case verbs.TimestampCycles:
					clock := labtest.Must(ctx.Clock())(t)
					at = clock.Time(wc.Timestamp)
					if i > 0 && clock.Between(last, wc.Timestamp) <= 0 {
						t.Errorf("timestamp %#x after %#x", wc.Timestamp, last)
					}
				case verbs.TimestampRealTime:
					at = time.Unix(0, int64(wc.Timestamp))
					if i == 0 {
						apart = at.Sub(after)
					}
					at = at.Add(-apart)
				}
				last = wc.Timestamp
				if apart.Abs() > time.Minute {
					t.Fatalf("completed %v from now", apart)
				}
				if slack := 20 * time.Millisecond; at.Before(before.Add(-slack)) || at.After(after.Add(slack)) {
					t.Errorf("format %d: completed at %v, not from %v to %v", format, at, before, after)
				}
			}
		}
	})
}

// TestTimestampFormats: the kernel takes no queue pair whose completions have timestamps of two
// clocks, and the error says why.
func TestTimestampFormats(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		realTime, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 16, Timestamps: verbs.TimestampRealTime})
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		labtest.Made(realTime, err)(t)
		plain := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 16}))(t)
		pd := labtest.Made(ctx.AllocPD())(t)
		_, err = pd.CreateQP(uverbs.QPOptions{SendCQ: plain, RecvCQ: realTime})
		if err == nil || !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		t.Log(err)
	})
}

//go:build linux

package uverbs_test

import (
	"bytes"
	"context"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

var (
	sends    = flag.Int("sends", 100_000, "messages that TestSendStream sends")
	sendTime = flag.Duration("sendtime", 150*time.Second, "after which TestSendStream sends no more")
)

// sizes yields message sizes of 0 to 64 KiB, evenly over the powers of two so that
// many fit in a test, and the offset of each in the source.
type sizes struct{ *rand.Rand }

const (
	maxMessage = 64 << 10
	source     = 1 << 20
)

func newSizes() sizes { return sizes{rand.New(rand.NewPCG(1, 2))} }

func (s sizes) next() (off, n int) {
	n = s.IntN(maxMessage>>s.IntN(17) + 1)
	return s.IntN(source - n), n
}

func randomBytes(b []byte) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// TestSendStream sends messages of mixed sizes as fast as they go and compares
// every byte that arrives, in order.
func TestSendStream(t *testing.T) {
	labtest.RequireBoth(t)
	const depth, slots = 128, 256
	total := labtest.Rounds(*sends, 3000)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{
		Cap:    verbs.QPCap{MaxSendWR: depth, MaxRecvWR: slots, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		Memory: slots * maxMessage,
		Events: true,
	})
	src := a.MR.Bytes()[:source]
	randomBytes(src)
	slot := func(i uint64) verbs.RecvWR {
		return verbs.RecvWR{ID: i, SGL: []verbs.SGE{b.MR.SGE(int(i)*maxMessage, maxMessage)}}
	}
	for i := range uint64(slots) {
		recv(t, b.QP, slot(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), *sendTime+time.Minute)
	defer cancel()

	var sent atomic.Int64 // how many there are in all; 0 while not known
	received := make(chan int, 1)
	var volume int64
	go func() {
		defer cancel()
		n := 0
		defer func() { received <- n }()
		seq := newSizes()
		var wcs [32]verbs.WC
		for total := int64(0); total == 0 || int64(n) < total; total = sent.Load() {
			got, err := b.RecvCQ.PollWait(ctx, wcs[:])
			if err != nil {
				if total = sent.Load(); int64(n) != total {
					t.Errorf("after %d messages: %v", n, err)
				}
				return
			}
			for _, wc := range wcs[:got] {
				off, size := seq.next()
				base := int(wc.ID) * maxMessage
				if err := wc.Err(); err != nil || int(wc.ByteLen) != size || !bytes.Equal(b.MR.Bytes()[base:base+size], src[off:off+size]) {
					t.Errorf("message %d: %d bytes, want %d with other content: %v", n, wc.ByteLen, size, err)
					return
				}
				n++
				volume += int64(size)
				if _, err := b.QP.PostRecv(slot(wc.ID)); err != nil {
					t.Errorf("post_recv: %v", err)
					return
				}
			}
		}
	}()

	start := time.Now()
	seq := newSizes()
	posted, done := 0, 0
	var wrs [8]verbs.SendWR
	var sgl [len(wrs)]verbs.SGE
	var wcs [32]verbs.WC
	for posted < total && ctx.Err() == nil && time.Since(start) < *sendTime {
		batch := min(len(wrs), total-posted)
		for i := range wrs[:batch] {
			off, n := seq.next()
			sgl[i] = a.MR.SGE(off, n)
			wrs[i] = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: sgl[i : i+1]}
		}
		for posted+batch-done > depth {
			n, err := a.SendCQ.PollWait(ctx, wcs[:])
			if err != nil {
				t.Fatalf("send completion: %v", err)
			}
			for _, wc := range wcs[:n] {
				if err := wc.Err(); err != nil {
					t.Fatal(err)
				}
			}
			done += n
		}
		send(t, a.QP, wrs[:batch]...)
		posted += batch
	}
	sent.Store(int64(posted))
	// The receiver may sleep although everything has arrived: the last send completions
	// show when that must be so.
	for done < posted {
		n, err := a.SendCQ.PollWait(ctx, wcs[:])
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			break
		}
		done += n
	}
	var n int
	select {
	case n = <-received:
	case <-time.After(time.Second):
		cancel()
		n = <-received
	}
	elapsed := time.Since(start)
	t.Logf("%d messages, %d MiB in %v: %.0f messages/s, %.1f MiB/s", n, volume>>20, elapsed.Round(time.Millisecond),
		float64(n)/elapsed.Seconds(), float64(volume)/(1<<20)/elapsed.Seconds())
	if n != posted || n < min(total, 100_000) {
		t.Errorf("%d messages arrived, %d were posted, %d wanted", n, posted, total)
	}
}

// TestWriteRead writes and reads back sizes from 1 to 8193 bytes, and 1 MiB, and
// checks that nothing else is written.
func TestWriteRead(t *testing.T) {
	labtest.RequireBoth(t)
	const guard = 16
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{Memory: 3 << 20})
	src, dst := a.MR.Bytes()[:1<<20], a.MR.Bytes()[1<<20:]
	remote := b.MR.Bytes()
	randomBytes(src)
	check := func(n, shift int) {
		from := src[shift : shift+n]
		clear(remote[:n+guard])
		clear(dst[:n+guard])
		send(t, a.QP,
			verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []verbs.SGE{a.MR.SGE(shift, n)}},
			verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []verbs.SGE{a.MR.SGE(1<<20, n)}})
		if wc := next(t, a.SendCQ); wc.ID != 2 || wc.Opcode != verbs.WCRDMARead || int(wc.ByteLen) != n {
			t.Fatalf("%d bytes: completion %+v", n, wc)
		}
		if !bytes.Equal(remote[:n], from) || !bytes.Equal(dst[:n], from) {
			t.Fatalf("%d bytes: not what was written", n)
		}
		if zero := make([]byte, guard); !bytes.Equal(remote[n:n+guard], zero) || !bytes.Equal(dst[n:n+guard], zero) {
			t.Fatalf("%d bytes: memory behind them was touched", n)
		}
	}
	for n := 1; n <= 8193; n += labtest.Rounds(1, 64) {
		check(n, n%4096)
	}
	check(1<<20, 0)
}

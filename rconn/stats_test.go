//go:build linux

package rconn

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestStats compares the statistics with what was done, exactly.
func TestStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var in *LocalRegion
		a, b := newPair(t, device, Options{Adverts: 1, Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: 8}}}, Options{Options: cm.Options{Cap: verbs.QPCap{MaxRecvWR: 3}}, Setup: func(c *Conn) (err error) {
			in, err = c.Alloc(300, LocalWrite)
			for i := 0; err == nil && i < 3; i++ {
				err = c.PostRecv(uint64(i), in.Span(100*i, 100))
			}
			return err
		}})
		if err := b.PostRecv(9, in.All()); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("one receive too many: %v", err)
		}
		_, remote := advertise(t, b, a, 4096, ReadWrite)
		mine := labtest.Must(a.Alloc(4096, LocalWrite))(t)
		check(t, a.Post(Send(mine.Span(0, 10), mine.Span(0, 20)).With(1, verbs.SendSignaled)))
		check(t, a.Post(SendInline(make([]byte, 5)).With(2, verbs.SendSignaled)))
		check(t, a.Post(Write(remote.At(0), mine.Span(0, 1000)).With(3, verbs.SendSignaled)))
		await(t, a, Sends, 3)
		check(t, a.Post(Read(remote.At(0), mine.Span(0, 500)).With(4, verbs.SendSignaled)))
		await(t, a, Sends, 1)
		await(t, b, Recvs, 2)
		want := Stats{
			Sends: Traffic{2, 35}, Writes: Traffic{1, 1000}, Reads: Traffic{1, 500},
			AdvertsReceived: 1,
			SendQueue:       QueueStats{Depth: 8, Posted: 4, Completed: 4, Taken: 4},
			RecvQueue:       QueueStats{Depth: 65, Now: 0, Most: 1, Posted: 1, Completed: 1},
		}
		got := a.Stats()
		if m := got.SendQueue.Most; m < 1 || m > 3 {
			t.Errorf("at most %d under way", m)
		}
		got.SendQueue.Most = 0
		for _, q := range []*QueueStats{&got.SendQueue, &got.RecvQueue} { // these two depend on timing
			if q.Waits > 10 || q.Wakeups > 50 {
				t.Errorf("%+v", q)
			}
			q.Waits, q.Wakeups = 0, 0
		}
		if got != want {
			t.Errorf("%+v, want\n%+v", got, want)
		}
		s := b.Stats()
		if s.Received != (Traffic{2, 35}) || s.AdvertsSent != 1 || s.Sends != (Traffic{1, AdvertSize}) {
			t.Errorf("%+v", s)
		}
		if q := s.RecvQueue; q.Depth != 3 || q.Posted != 3 || q.Now != 1 || q.Most != 3 || q.Taken != 2 || q.Stalls != 1 {
			t.Errorf("%+v", q)
		}

		// A wait and its wake-up count, unless the message arrives first.
		before, n := s.RecvQueue, uint64(0)
		for q := before; q.Wakeups == before.Wakeups; n++ {
			if n > 0 {
				check(t, b.PostRecv(0, in.Span(0, 100)))
			}
			done := make(chan error, 1)
			go func() { done <- b.Await(testContext(t), Recvs, make([]verbs.WC, 1)) }()
			labtest.Until(t, "the call to wait", func() bool { return b.Stats().RecvQueue.Waits != before.Waits+n })
			check(t, a.Post(SendInline([]byte("wake up")).With(5, verbs.SendSignaled)))
			await(t, a, Sends, 1)
			check(t, <-done)
			if q = b.Stats().RecvQueue; q.Waits != before.Waits+n+1 || n == 1000 {
				t.Fatalf("after %d waits: %+v after %+v", n+1, q, before)
			}
		}

		for i := range 20 { // 8 fill the queue with completions that are not taken
			if err := a.Post(Write(remote.At(0), mine.All()).With(6, verbs.SendSignaled)); (err == nil) != (i < 8) || err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("post %d: %v", i, err)
			}
		}
		if q := a.Stats().SendQueue; q.Stalls != 12 || q.Most != 8 {
			t.Errorf("%+v", q)
		}
		before = b.Stats().RecvQueue
		check(t, b.PostRecv(0, in.All()))
		check(t, a.Close())
		check(t, b.AwaitDisconnect(testContext(t)))
		var flushed [1]verbs.WC
		check(t, b.Await(testContext(t), Recvs, flushed[:]))
		if s := b.Stats().RecvQueue; s.Failed != 1 || s.Now != 0 || s.Taken != before.Taken+1 {
			t.Errorf("%+v", s)
		}
		check(t, b.Close())
		if s := b.Stats(); s.Received != (Traffic{2 + n, 35 + 7*n}) || s.RecvQueue.Now != 0 {
			t.Errorf("after Close: %+v", s)
		}
	})
}

// logBuffer collects what a logger writes. It uses the Conn, as handlers may.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	conn func() *Conn
}

func (l *logBuffer) Write(b []byte) (int, error) {
	if c := l.conn(); c != nil {
		c.Stats()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// await waits for a line that contains all the words.
func (l *logBuffer) await(t *testing.T, words ...string) {
	t.Helper()
	var text string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.mu.Lock()
		text = l.text.String()
		l.mu.Unlock()
	lines:
		for line := range strings.Lines(text) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return
		}
	}
	t.Errorf("no line with %q in\n%s", words, text)
}

// TestQuietStats reads the statistics of two ends whose programs call nothing: what has completed
// is counted, and waits for them.
func TestQuietStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{}, Options{Setup: func(c *Conn) error {
			r, err := c.Alloc(100, LocalWrite)
			if err != nil {
				return err
			}
			return c.PostRecv(1, r.All())
		}})
		check(t, a.Post(SendInline(make([]byte, 5)).With(2, verbs.SendSignaled)))
		labtest.Until(t, "the message", func() bool { s := b.Stats(); return s.Received.Bytes == 5 && s.RecvQueue.Ready == 1 })
		labtest.Until(t, "the completion", func() bool { s := a.Stats().SendQueue; return s.Completed == 1 && s.Ready == 1 && s.Now == 0 })
		await(t, a, Sends, 1)
		await(t, b, Recvs, 1)
	})
}

// TestLogger tests what is logged about a connection.
func TestLogger(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var conn *Conn
		var mu sync.Mutex
		l := &logBuffer{conn: func() *Conn { mu.Lock(); defer mu.Unlock(); return conn }}
		logger := slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
		a, b := newPair(t, device, Options{}, Options{Adverts: 1, Options: cm.Options{Logger: logger}})
		mu.Lock()
		conn = b
		mu.Unlock()
		where := []string{"device=" + device, "local=" + b.LocalAddr().String(), "remote=" + b.RemoteAddr().String()}
		check(t, a.Post(SendInline([]byte("something else")).With(1, 0)))
		if _, err := b.AwaitAdvert(testContext(t)); !errors.Is(err, ErrAdvert) {
			t.Error(err)
		}
		l.await(t, append(where, "level=WARN", "advertisement", "err=")...)
		wrong := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}}}
		if device == labtest.RXE { // rxe flushes requests with wrong local keys
			wrong = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: []byte("x"), RemoteAddr: 1, RKey: 1}
		}
		check(t, b.Post(Op{SendWR: wrong}))
		check(t, b.Await(testContext(t), Sends, make([]verbs.WC, 1)))
		l.await(t, append(where, "level=DEBUG", "failed", "err=")...)
	})
}

// TestPrepare chooses PD and sizes when the device is known, on both sides.
func TestPrepare(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		pd := labtest.Made(labtest.OpenDevice(t, device).AllocPD())(t)
		region := labtest.Made(allocIn(pd, 4096, uverbs.MROptions{}))(t)
		t.Run("conns", func(t *testing.T) {
			prepare := func(route cm.Route, o *cm.Options) error {
				if !route.Local.IsValid() || o.Cap.MaxSendWR != 64 {
					t.Errorf("%+v, %+v", route, o)
				}
				o.PD, o.Cap.MaxSendWR, o.Cap.MaxRecvWR = pd, 3, -1
				return nil
			}
			a, b := newPair(t, device, Options{Adverts: 1, Options: cm.Options{Prepare: prepare}}, Options{Options: cm.Options{Prepare: prepare}})
			if a.ep.PD != pd || b.ep.PD != pd || a.Stats().SendQueue.Depth != 3 || a.Stats().RecvQueue.Depth != 1 || b.Stats().RecvQueue.Depth != 0 {
				t.Errorf("%+v, %+v", a.Stats(), b.Stats())
			}
			check(t, b.Post(Advert(0, region.All())))
			remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
			check(t, a.Put(testContext(t), remote.At(0), []byte("prepared")))
			for _, c := range []*Conn{a, b} { // they have none for messages
				if err := c.PostRecv(0, region.Span(0, 1)); !errors.Is(err, verbs.ErrNoRecvRoom) {
					t.Errorf("a receive: %v", err)
				}
			}
		})
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		oops := errors.New("oops")
		for want, o := range map[error]Options{
			oops:           {Options: cm.Options{Prepare: func(cm.Route, *cm.Options) error { return oops }}},
			verbs.ErrRange: {Options: cm.Options{Prepare: func(_ cm.Route, o *cm.Options) error { o.Cap.MaxSendSGE = -1; return nil }}},
		} {
			if _, err := dial(ctx, l.Addr().String(), o); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

// TestMaxInline tests that each device takes its maximum of inline data, and no more.
func TestMaxInline(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		most := labtest.MaxInline(t, device)
		a, b := newPair(t, device, Options{Options: cm.Options{Cap: verbs.QPCap{MaxInline: most}}}, Options{Setup: func(c *Conn) error {
			in, err := c.Alloc(1024, LocalWrite)
			if err == nil {
				err = c.PostRecv(1, in.All())
			}
			return err
		}})
		check(t, a.Post(SendInline(make([]byte, most))))
		if wc := await(t, b, Recvs, 1)[0]; int(wc.ByteLen) != most {
			t.Errorf("%d bytes came", wc.ByteLen)
		}
		if err := a.Post(SendInline(make([]byte, most+1))); !errors.Is(err, verbs.ErrInlineTooLong) {
			t.Errorf("%d bytes: %v", most+1, err)
		}
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		if c, err := dial(ctx, l.Addr().String(), Options{Options: cm.Options{Cap: verbs.QPCap{MaxInline: most + 1}}}); err == nil {
			t.Errorf("a queue for %d bytes was made: %+v", most+1, c.Endpoint().QP.Cap())
		}
	})
}

// TestSums compares the sums of a listener and a dialer with what their connections did, while
// they are open and after.
func TestSums(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Must(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		var d Dialer
		const conns = 3
		var pairs [][2]*Conn
		for range conns {
			a, b := labtest.DialAccept(t, func() (*Conn, error) { return d.Dial(ctx, l.Addr().String()) }, func() (*Conn, error) {
				r, err := l.Accept(ctx)
				if err != nil {
					return nil, err
				}
				return r.Accept(ctx, Options{})
			})
			pairs = append(pairs, [2]*Conn{a, b})
			in := labtest.Must(b.Alloc(100, LocalWrite))(t)
			check(t, b.PostRecv(1, in.All()))
			check(t, a.Post(SendInline(make([]byte, 5)).With(1, verbs.SendSignaled)))
			await(t, a, Sends, 1)
			await(t, b, Recvs, 1)
		}
		for _, open := range []int{conns, 0} {
			ds, ls := d.Stats(), l.Stats()
			if ds.Open != open || ls.Open != open || ds.Dials != conns || ds.Failed != 0 || ls.Accepted != conns {
				t.Errorf("%+v, %+v, want %d open", ds, ls, open)
			}
			if s := ds.Conns; s.Sends != (Traffic{conns, 5 * conns}) || s.SendQueue.Taken != conns || s.SendQueue.Depth > 0 != (open > 0) {
				t.Errorf("dialed: %+v", s)
			}
			if s := ls.Conns; s.Received != (Traffic{conns, 5 * conns}) || s.RecvQueue.Posted != conns || s.RecvQueue.Depth > 0 != (open > 0) {
				t.Errorf("accepted: %+v", s)
			}
			for _, p := range pairs {
				p[0].Close()
				p[1].Close()
			}
		}
		l.Close()
		if _, err := d.Dial(ctx, l.Addr().String()); err == nil || d.Stats().Failed != 1 {
			t.Errorf("%v, %+v", err, d.Stats())
		}
	})
}

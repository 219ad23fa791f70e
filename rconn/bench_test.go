//go:build linux

package rconn

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// BenchmarkWrite writes 8 bytes and waits for the completion, with a Conn and with
// package uverbs, on the same QP, polling or sleeping.
func BenchmarkWrite(b *testing.B) {
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		a, peer := newPair(b, device, Options{Adverts: 1}, Options{})
		_, remote := advertise(b, peer, a, 4096, ReadWrite)
		mine := labtest.Must(a.Alloc(64, LocalWrite))(b)
		var wcs [1]verbs.WC
		post := func(b *testing.B) {
			if err := a.Post(Write(remote.At(0), mine.Span(0, 8)).With(1, verbs.SendSignaled)); err != nil {
				b.Fatal(err)
			}
		}
		wr := []verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: remote.Addr, RKey: remote.Key, SGL: []verbs.SGE{mine.MR().SGE(0, 8)}}}
		postDirect := func(b *testing.B) {
			if _, err := a.ep.QP.PostSend(wr...); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range []struct {
			name string
			f    func(b *testing.B)
		}{
			{"poll/conn", func(b *testing.B) {
				post(b)
				for a.Poll(Sends, wcs[:]) == 0 {
				}
			}},
			{"poll/uverbs", func(b *testing.B) {
				postDirect(b)
				for a.ep.SendCQ.Poll(wcs[:]) == 0 {
				}
			}},
			{"wait/conn", func(b *testing.B) {
				post(b)
				if err := a.Await(b.Context(), Sends, wcs[:]); err != nil {
					b.Fatal(err)
				}
			}},
			{"wait/uverbs", func(b *testing.B) {
				postDirect(b)
				if _, err := a.ep.SendCQ.PollWait(b.Context(), wcs[:]); err != nil {
					b.Fatal(err)
				}
			}},
		} {
			b.Run(device+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c.f(b)
					if wcs[0].Status != verbs.WCSuccess {
						b.Fatal(wcs[0].Err())
					}
				}
			})
		}
	}
}

// BenchmarkBooks measures the overhead of a Conn for a post and a poll. It posts and
// completes the same request repeatedly, without the driver.
func BenchmarkBooks(b *testing.B) {
	a, peer := newPair(b, labtest.RXE, Options{Adverts: 1}, Options{})
	_, remote := advertise(b, peer, a, 4096, ReadWrite)
	mine := labtest.Must(a.Alloc(64, LocalWrite))(b)
	spans := []Span{mine.Span(0, 8), mine.Span(8, 8)}
	s := &a.send
	o := Write(remote.At(0), spans...).With(1, verbs.SendSignaled)
	var wcs [1]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		s.mu.Lock()
		total, err := s.check(spans, 0)
		if err == nil {
			err = o.checkTarget(total, verbs.AccessRemoteWrite)
		}
		if err == nil {
			err = s.checkRoom(1, &o, nil)
		}
		if err != nil {
			b.Fatal(err)
		}
		n, _ := s.gather(spans)
		s.entries[s.slot(s.head)] = entry{id: 1, forUser: true, signaled: true, n: n}
		s.posted()
		s.counts.count(o.Opcode, total)
		s.pending++
		s.userPending++
		s.handleCompletion(&verbs.WC{ID: s.head - 1})
		s.take(wcs[:])
		s.mu.Unlock()
	}
}

// TestAllocs tests that posting, polling and awaiting do not allocate.
func TestAllocs(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var in *LocalRegion
		a, b := newPair(t, device, Options{Adverts: 1}, Options{Setup: func(c *Conn) (err error) {
			if in, err = c.Alloc(64, LocalWrite); err != nil {
				return err
			}
			return c.PostRecv(0, in.All())
		}})
		check(t, b.PostRecv(0, in.All()))
		access, _ := rights(t, device)
		_, remote := advertise(t, b, a, 4096, access)
		mine := labtest.Must(a.Alloc(64, LocalWrite))(t)
		var wcs [1]verbs.WC
		take := func(c *Conn, d Direction) {
			for c.Poll(d, wcs[:]) == 0 {
			}
			if err := wcs[0].Err(); err != nil {
				t.Fatal(err)
			}
		}
		ctx, data := testContext(t), make([]byte, 64)
		if n := testing.AllocsPerRun(100, func() {
			check(t, a.Post(Write(remote.At(0), mine.Span(0, 8), mine.Span(8, 8)).With(1, verbs.SendSignaled)))
			take(a, Sends)
			check(t, a.Post(Read(remote.At(0), mine.Span(0, 8), mine.Span(8, 8)).With(2, verbs.SendSignaled)))
			take(a, Sends)
			check(t, a.Post(Send(mine.All()).With(3, verbs.SendSignaled)))
			take(a, Sends)
			take(b, Recvs)
			check(t, b.PostRecv(4, in.All()))
			local := [...]byte{1, 2, 3}
			check(t, a.Post(SendInline(local[:]).With(5, verbs.SendSignaled)))
			take(a, Sends)
			take(b, Recvs)
			check(t, b.PostRecv(4, in.All()))
			check(t, a.Post(WriteInline(remote.At(0), data).With(6, verbs.SendSignaled)))
			take(a, Sends)
			check(t, a.Post(Write(remote.At(0), mine.All()).With(1, verbs.SendSignaled)))
			check(t, a.Await(ctx, Sends, wcs[:]))
			if device == labtest.RXE {
				check(t, a.Post(FetchAdd(remote.At(0), 1, mine.Span(0, 8)).With(7, verbs.SendSignaled)))
				take(a, Sends)
			}
			a.Stats()
		}); n != 0 && !labtest.Allocates {
			t.Errorf("%v allocations", n)
		}
	})
}

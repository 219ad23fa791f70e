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
			if err := a.PostWrite(1, verbs.SendSignaled, remote.At(0), mine.Span(0, 8)); err != nil {
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
	r := request{wr: verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}, at: remote.At(0), targeted: true}
	var wcs [1]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		s.mu.Lock()
		total, err := a.check(spans, 0)
		if err == nil {
			err = r.at.checkFor(&r.wr, total)
		}
		if err == nil {
			err = s.checkRoom(1, &r)
		}
		if err != nil {
			b.Fatal(err)
		}
		slot := s.head & s.mask
		n, _ := a.gather(s.sge, s.regions[int(slot)*a.sges:], spans)
		s.entries[slot] = sendEntry{id: 1, live: true, forUser: true, signaled: true, n: n}
		s.head++
		s.count(r.wr.Opcode, total)
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
		_, remote := advertise(t, b, a, 4096, ReadWrite)
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
			check(t, a.PostWrite(1, verbs.SendSignaled, remote.At(0), mine.Span(0, 8), mine.Span(8, 8)))
			take(a, Sends)
			check(t, a.PostRead(2, verbs.SendSignaled, remote.At(0), mine.Span(0, 8), mine.Span(8, 8)))
			take(a, Sends)
			check(t, a.PostSend(3, verbs.SendSignaled, mine.All()))
			take(a, Sends)
			take(b, Recvs)
			check(t, b.PostRecv(4, in.All()))
			check(t, a.PostSendInline(5, verbs.SendSignaled, data))
			take(a, Sends)
			take(b, Recvs)
			check(t, b.PostRecv(4, in.All()))
			check(t, a.PostWriteInline(6, verbs.SendSignaled, remote.At(0), data))
			take(a, Sends)
			check(t, a.PostWrite(1, verbs.SendSignaled, remote.At(0), mine.All()))
			check(t, a.Await(ctx, Sends, wcs[:]))
			a.Stats()
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

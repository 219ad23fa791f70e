//go:build linux

package rconn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestAdverts advertises parts of regions in both directions and in order, to receives
// posted before and after the connection was up.
func TestAdverts(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		opt := Options{Adverts: 3, Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: 10}}}
		a, b := newPair(t, device, opt, opt)
		for _, cs := range [][2]*Conn{{a, b}, {b, a}} {
			from, to := cs[0], cs[1]
			r := labtest.Must(from.Alloc(1<<16, ReadWrite))(t)
			if _, err := to.AwaitAdvert(ended(t)); !errors.Is(err, context.Canceled) {
				t.Errorf("an advertisement is there: %v", err)
			}
			for round := range 3 {
				for i := range 3 {
					check(t, from.Post(Advert(uint32(10*round+i), r.Span(i*100, 1000+i)).With(uint64(i), verbs.SendSignaled)))
				}
				for i, wc := range await(t, from, Sends, 3) {
					if wc.ID != uint64(i) {
						t.Errorf("completion %+v", wc)
					}
				}
				for i := range 3 {
					got := labtest.Must(to.AwaitAdvert(ctx))(t)
					want := RemoteRegion{uint32(10*round + i), r.MR().Addr() + uint64(i*100), 1000 + i, r.MR().RKey(), verbs.AccessRemoteWrite | verbs.AccessRemoteRead}
					if got != want {
						t.Fatalf("%+v want %+v", got, want)
					}
					text := []byte{byte(round), byte(i), 'x'}
					check(t, to.Put(ctx, got.At(got.Len-3), text))
					if end := i*100 + 1000 + i; !bytes.Equal(r.Bytes()[end-3:end], text) {
						t.Errorf("%q is there want %q", r.Bytes()[end-3:end], text)
					}
				}
				if _, err := to.AwaitAdvert(ctx); !errors.Is(err, ErrNotExpected) {
					t.Errorf("awaiting one with no receive posted: %v", err)
				}
				for range 3 {
					check(t, to.PostRecvAdvert())
				}
			}
		}
	})
}

// TestAdvertOrder mixes messages and advertisements: they consume receives in the order
// in which these were posted. A message in a receive for an advertisement is an error.
func TestAdvertOrder(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var inbox *LocalRegion
		a, b := newPair(t, device, Options{}, Options{Setup: func(c *Conn) (err error) {
			if inbox, err = c.Alloc(1024, LocalWrite); err != nil {
				return err
			}
			if err = c.PostRecv(1, inbox.Span(0, 100)); err == nil {
				if err = c.PostRecvAdvert(); err == nil {
					if err = c.PostRecv(2, inbox.Span(100, 100)); err == nil {
						if err = c.PostRecv(3, inbox.Span(200, 100)); err == nil {
							err = c.PostRecvAdvert()
						}
					}
				}
			}
			return err
		}})
		out := labtest.Must(a.Alloc(100, ReadWrite))(t)
		copy(out.Bytes(), "some message")
		msg := out.Span(0, 12)
		check(t, a.Post(Send(msg)))
		check(t, a.Post(Advert(77, out.All())))
		check(t, a.Post(Send(msg)))
		check(t, a.Post(Advert(78, out.All()))) // consumes a receive for a message
		check(t, a.Post(Send(msg)))             // consumes one for an advertisement
		wcs := await(t, b, Recvs, 3)
		for i, n := range []uint32{12, 12, AdvertSize} {
			if wcs[i].ID != uint64(i+1) || wcs[i].ByteLen != n {
				t.Errorf("receive %d: %+v", i, wcs[i])
			}
		}
		if r, err := ParseAdvert(inbox.Bytes()[200:][:AdvertSize]); r.Tag != 78 || err != nil {
			t.Errorf("the advertisement in a message: %+v, %v", r, err)
		}
		if r, err := b.AwaitAdvert(testContext(t)); r.Tag != 77 || err != nil {
			t.Errorf("the advertisement: %+v, %v", r, err)
		}
		_, err := b.AwaitAdvert(testContext(t))
		if bad, ok := errors.AsType[*AdvertError](err); !ok || !errors.Is(err, ErrAdvert) || string(bad.Message) != "some message" {
			t.Errorf("the message in an advertisement's place: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		check(t, b.PostRecvAdvert())
		if _, err := b.AwaitAdvert(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("awaiting one that does not come: %v", err)
		}
		check(t, a.Post(Advert(79, out.All())))
		if r, err := b.AwaitAdvert(testContext(t)); r.Tag != 79 || err != nil {
			t.Errorf("the advertisement after a wait was cancelled: %+v, %v", r, err)
		}
	})
}

// modifiedAdvert makes an advertisement by hand, with a correct checksum.
func modifiedAdvert(change func(b []byte)) []byte {
	b := make([]byte, AdvertSize)
	binary.BigEndian.PutUint16(b, 0xad7e)
	b[2], b[3] = 1, 3
	binary.BigEndian.PutUint64(b[8:], 0x7f0000001000)
	binary.BigEndian.PutUint64(b[16:], 4096)
	binary.BigEndian.PutUint32(b[24:], 0x1234)
	change(b)
	binary.BigEndian.PutUint32(b[28:], crc32.Checksum(b[:28], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestParseAdvert tests that valid advertisements are accepted, and others are not.
func TestParseAdvert(t *testing.T) {
	good := modifiedAdvert(func(b []byte) { b[7] = 9 })
	want := RemoteRegion{9, 0x7f0000001000, 4096, 0x1234, verbs.AccessRemoteWrite | verbs.AccessRemoteRead}
	if got, err := ParseAdvert(good); got != want || err != nil {
		t.Errorf("%+v, %v want %+v", got, err, want)
	}
	if b, err := want.AppendAdvert(nil); !bytes.Equal(b, good) || err != nil {
		t.Errorf("%x, %v, want %x", b, err, good)
	}
	for _, r := range []RemoteRegion{{Len: 1}, {Access: RemoteRead}, {Access: RemoteRead, Len: -1}, {Access: RemoteRead, Len: 2, Addr: 1<<64 - 1}} {
		if b, err := r.AppendAdvert(nil); len(b) != 0 || !errors.Is(err, verbs.ErrRange) && !errors.Is(err, ErrAccess) {
			t.Errorf("%+v became %x, %v", r, b, err)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"short":         good[:31],
		"long":          append(bytes.Clone(good), 0),
		"other magic":   modifiedAdvert(func(b []byte) { b[0] = 0 }),
		"other version": modifiedAdvert(func(b []byte) { b[2] = 2 }),
		"no access":     modifiedAdvert(func(b []byte) { b[3] = 0 }),
		"more access":   modifiedAdvert(func(b []byte) { b[3] = 32 | 1 }),
		"no length":     modifiedAdvert(func(b []byte) { clear(b[16:24]) }),
		"wraps around":  modifiedAdvert(func(b []byte) { copy(b[8:], "\xff\xff\xff\xff\xff\xff\xff\xff") }),
		"longer than int": modifiedAdvert(func(b []byte) {
			clear(b[8:16])
			b[16] = 0x80
		}),
	} {
		if r, err := ParseAdvert(b); !errors.Is(err, ErrAdvert) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	for i := range 8 * AdvertSize {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		if _, err := ParseAdvert(b); !errors.Is(err, ErrAdvert) {
			t.Errorf("with bit %d flipped: %v", i, err)
		}
	}
	adverts, rest := parseAdverts(append(append(bytes.Clone(good), good...), "text"...))
	if len(adverts) != 2 || adverts[1] != want || string(rest) != "text" {
		t.Errorf("%+v and %q", adverts, rest)
	}
}

// FuzzParseAdvert checks that accepted advertisements are of usable regions.
func FuzzParseAdvert(f *testing.F) {
	f.Add(modifiedAdvert(func([]byte) {}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseAdvert(b); err == nil && (r.Len < 1 || r.Addr+uint64(r.Len)-1 < r.Addr || r.Access == 0) {
			t.Errorf("%+v", r)
		}
	})
}

// TestLateAnnounce announces a region when the private data has been sent.
func TestLateAnnounce(t *testing.T) {
	labtest.Require(t)
	a, b := newPair(t, labtest.RoCE, Options{}, Options{})
	for _, c := range []*Conn{a, b} {
		r := labtest.Must(c.Alloc(4096, ReadWrite))(t)
		if err := c.Announce(1, r.All()); !errors.Is(err, syscall.EISCONN) || !strings.Contains(err.Error(), "Post(Advert") {
			t.Error(err)
		}
	}
}

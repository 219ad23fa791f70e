//go:build linux

package rconn

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestConnect exchanges private data, with and without advertisements, in both
// directions, and uses the advertised regions.
func TestConnect(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, adverts := range []int{0, 1} {
			var theirs *LocalRegion
			ctx := testContext(t)
			l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
			said := func(text string) Options {
				return Options{Options: cm.Options{PrivateData: []byte(text)}, Setup: func(c *Conn) (err error) {
					for i := range adverts {
						if theirs, err = c.Alloc(4096, ReadWrite); err == nil {
							err = c.Announce(uint32(i+5), theirs.Span(8, 100))
						}
						if err != nil {
							return err
						}
					}
					return nil
				}}
			}
			heard := func(side string, data []byte, regions []RemoteRegion, want string) {
				t.Helper()
				if got := string(bytes.TrimRight(data, "\x00")); got != want {
					t.Errorf("%s heard %q, want %q", side, got, want)
				}
				if len(regions) != adverts {
					t.Fatalf("%s heard of %d regions, want %d", side, len(regions), adverts)
				}
				for i, r := range regions {
					if r.Tag != uint32(i+5) || r.Len != 100 || r.Access != verbs.AccessRemoteWrite|verbs.AccessRemoteRead {
						t.Errorf("%s heard of %+v", side, r)
					}
				}
			}
			accepted := make(chan *Conn, 1)
			go func() {
				defer close(accepted)
				r, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				heard("the request", r.PrivateData(), r.Adverts(), "hello")
				if !r.RemoteAddr().IsValid() || r.LocalAddr() != l.Addr() {
					t.Errorf("from %v to %v", r.RemoteAddr(), r.LocalAddr())
				}
				c, err := r.Accept(ctx, said("welcome"))
				if err != nil {
					t.Error(err)
					return
				}
				accepted <- c
			}()
			a := labtest.Made(dial(ctx, l.Addr().String(), said("hello")))(t)
			b := <-accepted
			if b == nil {
				return
			}
			labtest.Close(t, b)
			heard("the dialing side", a.PrivateData(), a.Adverts(), "welcome")
			heard("the accepting side", b.PrivateData(), b.Adverts(), "hello")
			if a.RemoteAddr() != b.LocalAddr() || b.RemoteAddr() != a.LocalAddr() {
				t.Errorf("%v to %v, %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
			}
			for _, r := range a.Adverts() {
				check(t, a.Put(ctx, r.At(1), []byte("by what was announced")))
				if !bytes.Contains(theirs.Bytes()[:9+21], []byte("by what was announced")) && adverts == 1 {
					t.Error("put elsewhere")
				}
			}
		}
	})
}

// TestReject rejects a request with a reason.
func TestReject(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		rejected := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Reject([]byte("not you"))
			}
			rejected <- err
		}()
		_, err := dial(ctx, l.Addr().String(), Options{Adverts: 3})
		check(t, <-rejected)
		if !labtest.RejectedWith(t, device, err, "not you") {
			t.Errorf("the dial: %v", err)
		}
	})
}

// TestOptions tests invalid options, on both sides, and Setup functions that fail.
func TestOptions(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		for _, o := range []Options{{Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: -1}}}, {Options: cm.Options{Cap: verbs.QPCap{MaxRecvWR: maxQueue + 1}}}, {Options: cm.Options{Cap: verbs.QPCap{MaxSendSGE: -1, MaxRecvSGE: -1}}}, {Adverts: advertSlots + 1}} {
			if _, err := dial(ctx, l.Addr().String(), o); !errors.Is(err, verbs.ErrRange) {
				t.Errorf("dial with %+v: %v", o, err)
			}
		}
		setup := func(*cm.Endpoint) error { return nil }
		prepare := func(_ cm.Route, o *cm.Options) error { o.Setup = setup; return nil }
		for _, o := range []cm.Options{{Polled: true}, {Setup: setup}, {Prepare: prepare}} {
			if _, err := dial(ctx, l.Addr().String(), Options{Options: o}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("dial with %+v: %v", o, err)
			}
		}
		if _, err := dial(ctx, l.Addr().String(), Options{Options: cm.Options{Cap: verbs.QPCap{MaxSendSGE: 200, MaxRecvSGE: 200}}}); err == nil {
			t.Error("dial with 200 SGEs worked")
		}
		oops := errors.New("oops")
		failing := Options{Adverts: 1, Setup: func(c *Conn) error {
			if _, err := c.Alloc(4096, ReadWrite); err != nil {
				return err
			}
			return oops
		}}
		if _, err := dial(ctx, l.Addr().String(), failing); !errors.Is(err, oops) {
			t.Errorf("a dial whose setup fails: %v", err)
		}
		for _, o := range []Options{{Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: -1}}}, failing} {
			accepted := make(chan error, 1)
			go func() {
				r, err := l.Accept(ctx)
				if err == nil {
					_, err = r.Accept(ctx, o)
				}
				accepted <- err
			}()
			if _, err := dial(ctx, l.Addr().String(), Options{}); !labtest.Rejected(t, device, err) {
				t.Errorf("dial to who does not accept: %v", err)
			}
			if err := <-accepted; !errors.Is(err, verbs.ErrRange) && !errors.Is(err, oops) {
				t.Errorf("accept: %v", err)
			}
		}
		full := Options{Setup: func(c *Conn) error {
			r, err := c.Alloc(4096, ReadWrite)
			for i := uint32(0); err == nil; i++ {
				err = c.Announce(i, r.All())
			}
			return err
		}}
		if _, err := dial(ctx, l.Addr().String(), full); !errors.Is(err, cm.ErrPrivateData) {
			t.Errorf("announcing too much: %v", err)
		}
	})
}

// TestSharedPD uses allocated and registered regions with several connections in one
// protection domain, and tests that those of other domains are refused.
func TestSharedPD(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		pd := labtest.Made(labtest.OpenDevice(t, device).AllocPD())(t)
		shared := labtest.Must(allocIn(pd, 4096, uverbs.MROptions{}))(t)
		mine := NewRegion(pd, labtest.Must(pd.RegisterMR(make([]byte, 4096), LocalWrite, uverbs.MROptions{}))(t), LocalWrite)
		t.Run("conns", func(t *testing.T) {
			var first *Conn
			for i := range 3 {
				a, b := newPair(t, device, Options{Options: cm.Options{PD: pd}, Adverts: 1}, Options{Options: cm.Options{PD: pd}})
				if a.ep.PD != pd {
					t.Fatal("another PD")
				}
				if first == nil {
					first = a
				}
				check(t, b.Post(Advert(9, shared.All())))
				remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
				mine.Bytes()[i] = byte('a' + i)
				check(t, a.Post(Write(remote.At(i), mine.Span(i, 1)).With(0, verbs.SendSignaled)))
				await(t, a, Sends, 1)
				check(t, a.AwaitDelivery(testContext(t), remote))
			}
			if string(shared.Bytes()[:3]) != "abc" {
				t.Errorf("%q was written", shared.Bytes()[:3])
			}
			alone, _ := newPair(t, device, Options{}, Options{})
			if err := alone.Post(Send(mine.All())); !errors.Is(err, ErrForeign) {
				t.Errorf("a region of another PD: %v", err)
			}
			foreign := labtest.Must(alone.Alloc(10, LocalWrite))(t)
			if err := first.PostRecv(0, foreign.All()); !errors.Is(err, ErrForeign) {
				t.Errorf("a region of another PD: %v", err)
			}
			if err := pd.Close(); !errors.Is(err, verbs.ErrInUse) {
				t.Errorf("closing the PD under connections: %v", err)
			}
		})
		check(t, shared.Close())
		check(t, mine.Close())
	})
}

// TestAcceptorFirst lets the accepting side send first, immediately. On iWARP it should
// not, but it works nevertheless.
func TestAcceptorFirst(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		const rounds = 40
		served := make(chan error, 1)
		go func() {
			for range rounds {
				r, err := l.Accept(ctx)
				if err != nil {
					served <- err
					return
				}
				c, err := r.Accept(ctx, Options{})
				if err == nil {
					var offered *LocalRegion
					if offered, err = c.Alloc(64, ReadWrite); err == nil {
						if err = c.Post(Advert(1, offered.All())); err == nil {
							err = c.AwaitDisconnect(ctx)
						}
					}
					c.Close()
				}
				if err != nil {
					served <- err
					return
				}
			}
			served <- nil
		}()
		for range rounds {
			c := labtest.Must(dial(ctx, l.Addr().String(), Options{Adverts: 1}))(t)
			remote, err := c.AwaitAdvert(ctx)
			if err == nil {
				err = c.Put(ctx, remote.At(0), []byte("seen"))
			}
			check(t, err)
			check(t, c.Close())
		}
		check(t, <-served)
	})
}

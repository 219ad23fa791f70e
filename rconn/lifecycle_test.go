//go:build linux

package rconn

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestRegions allocates and registers regions and closes them, which fails while requests
// use them and can be repeated.
func TestRegions(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.NeedsSGEs(t, device, 2)
		a, b := newPair(t, device, Options{Adverts: 1}, Options{})
		mem := []byte("the caller's own memory")
		registered := labtest.Must(b.Register(mem, ReadWrite))(t)
		check(t, b.Post(Advert(0, registered.All())))
		remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
		check(t, a.Put(testContext(t), remote.At(4), []byte("CALLER")))
		check(t, registered.Close())
		if string(mem) != "the CALLER's own memory" {
			t.Errorf("the memory, after the region was destroyed: %q", mem)
		}

		in := labtest.Must(b.Alloc(100, LocalWrite))(t)
		if len(in.Bytes()) != 100 || in.Len() != 100 {
			t.Errorf("a region of 100 bytes has %d", len(in.Bytes()))
		}
		check(t, b.PostRecv(0, in.Span(0, 10), in.Span(10, 10)))
		if err := in.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("destroying a region that a receive names: %v", err)
		}
		out := labtest.Must(a.Alloc(100, 0))(t)
		check(t, a.Post(Send(out.Span(0, 20)).With(0, verbs.SendSignaled)))
		await(t, a, Sends, 1)
		await(t, b, Recvs, 1)
		for range 2 {
			check(t, in.Close())
		}
		if in.Bytes() != nil {
			t.Error("a destroyed region has memory")
		}
		if err := b.PostRecv(0, in.All()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("receiving to a destroyed region: %v", err)
		}
		if err := b.Post(Advert(0, in.All())); err == nil {
			t.Error("advertised a region that was destroyed")
		}
		// An unsignaled request counts as in flight.
		_, remote = advertise(t, b, withAdvert(t, a), 100, ReadWrite)
		check(t, a.Post(Write(remote.At(0), out.All())))
		if err := out.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("destroying a region that a WRITE names: %v", err)
		}
		check(t, a.AwaitDelivery(testContext(t), remote))
		check(t, out.Close())
		if _, err := a.Alloc(0, 0); err == nil {
			t.Error("made a region of nothing")
		}
	})
}

// withAdvert posts a receive for an advertisement.
func withAdvert(t *testing.T, c *Conn) *Conn {
	t.Helper()
	check(t, c.PostRecvAdvert())
	return c
}

// TestBounds posts requests outside regions or without the rights: they fail, and the
// connection stays usable.
func TestBounds(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.NeedsSGEs(t, device, 2)
		a, b := newPair(t, device, Options{Adverts: 3}, Options{})
		in := labtest.Must(b.Alloc(100, ReadWrite))(t)
		check(t, b.Post(Advert(1, in.Span(10, 50))))
		remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)
		_, readable := advertise(t, b, a, 100, RemoteRead)
		_, writable := advertise(t, b, a, 100, RemoteWrite)
		mine := labtest.Must(a.Alloc(200, LocalWrite))(t)
		fixed := labtest.Must(a.Alloc(200, 0))(t)
		maxInt := int(^uint(0) >> 1)
		for name, c := range map[string]struct {
			err, want error
		}{
			"send beyond":         {a.Post(Send(mine.Span(101, 100))), verbs.ErrRange},
			"send before":         {a.Post(Send(mine.Span(-1, 10))), verbs.ErrRange},
			"send less than 0":    {a.Post(Send(mine.Span(10, -1))), verbs.ErrRange},
			"send that overflows": {a.Post(Send(mine.Span(maxInt, maxInt))), verbs.ErrRange},
			"send of nowhere":     {a.Post(Send(Span{})), verbs.ErrRange},
			"recv beyond":         {a.PostRecv(0, mine.Span(0, 10), mine.Span(199, 2)), verbs.ErrRange},
			"recv to read-only":   {a.PostRecv(0, fixed.All()), ErrAccess},
			"write beyond":        {a.Post(Write(remote.At(0), mine.Span(0, 51))), verbs.ErrRange},
			"write before":        {a.Post(Write(remote.At(-1), mine.Span(0, 1))), verbs.ErrRange},
			"write that wraps":    {a.Post(Write(remote.At(maxInt), mine.Span(0, 1))), verbs.ErrRange},
			"write of SGL beyond": {a.Post(Write(remote.At(30), mine.Span(0, 10), mine.Span(0, 11))), verbs.ErrRange},
			"write to readable":   {a.Post(Write(readable.At(0), mine.Span(0, 1))), ErrAccess},
			"read beyond":         {a.Post(Read(remote.At(49), mine.Span(0, 2))), verbs.ErrRange},
			"read of writable":    {a.Post(Read(writable.At(0), mine.Span(0, 1))), ErrAccess},
			"read to read-only":   {a.Post(Read(remote.At(0), fixed.Span(0, 1))), ErrAccess},
			"put beyond":          {a.Put(t.Context(), remote.At(1), make([]byte, 50)), verbs.ErrRange},
			"put to readable":     {a.Put(t.Context(), readable.At(1), make([]byte, 50)), ErrAccess},
			"get beyond":          {a.Get(t.Context(), make([]byte, 50), remote.At(1)), verbs.ErrRange},
			"get of writable":     {a.Get(t.Context(), make([]byte, 50), writable.At(1)), ErrAccess},
			"advert beyond":       {a.Post(Advert(0, mine.Span(190, 11))), verbs.ErrRange},
			"advert of nothing":   {a.Post(Advert(0, mine.Span(190, 0))), verbs.ErrRange},
			"advert of private":   {a.Post(Advert(0, mine.All())), ErrAccess},
		} {
			if !errors.Is(c.err, c.want) || !strings.Contains(c.err.Error(), labtest.AddrOf(device)) {
				t.Errorf("%s: %v, want %v", name, c.err, c.want)
			}
		}
		if err := a.Post(Write(remote.At(40), mine.Span(0, 20))); !strings.Contains(err.Error(), "bytes 40 to 40+20 of remote region 1 ") {
			t.Errorf("the error does not say what: %v", err)
		}
		check(t, a.Put(testContext(t), remote.At(0), make([]byte, 50)))
		check(t, a.Put(testContext(t), writable.At(0), make([]byte, 50)))
		check(t, a.Get(testContext(t), make([]byte, 50), readable.At(50)))
		check(t, mine.Close())
	})
}

// TestDisconnect disconnects from either side: after AwaitDelivery all has arrived,
// requests in flight are flushed, and waits end.
func TestDisconnect(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for _, dialed := range []bool{true, false} {
			expecting := map[bool]Options{true: {Adverts: 1}}
			a, b := newPair(t, device, expecting[dialed], expecting[!dialed])
			if !dialed {
				a, b = b, a
			}
			theirs, remote := advertise(t, b, a, 100, ReadWrite)
			in := labtest.Must(b.Alloc(64, LocalWrite))(t)
			for i := range 3 {
				check(t, b.PostRecv(uint64(i), in.All()))
			}
			out := labtest.Must(a.Alloc(64, LocalWrite))(t)
			copy(out.Bytes(), "last words")
			check(t, a.Post(Write(remote.At(0), out.All())))
			check(t, a.Post(Send(out.All())))
			check(t, a.AwaitDelivery(testContext(t), remote))
			if err := a.AwaitDisconnect(expired(t)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("awaiting the peer's disconnection: %v", err)
			}
			if a.Err() != nil || b.Err() != nil {
				t.Errorf("connected: %v, %v", a.Err(), b.Err())
			}
			check(t, a.PostRecvAdvert())
			waiting := make(chan error, 2)
			go func() { waiting <- b.Await(testContext(t), Sends, make([]verbs.WC, 1)) }() // for a completion that never arrives
			go func() { _, err := a.AwaitAdvert(testContext(t)); waiting <- err }()
			a.Disconnect()
			check(t, b.AwaitDisconnect(testContext(t)))
			if err := a.AwaitDisconnect(testContext(t)); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("awaiting the peer's disconnection after one's own: %v", err)
			}
			for range 2 {
				if err := <-waiting; err == nil {
					t.Error("a wait did not fail")
				}
			}
			if string(theirs.Bytes()[:10]) != "last words" {
				t.Errorf("%q was written", theirs.Bytes()[:10])
			}
			var wcs [3]verbs.WC
			check(t, b.Await(testContext(t), Recvs, wcs[:]))
			for i, wc := range wcs {
				if want := map[bool]verbs.WCStatus{true: verbs.WCSuccess, false: verbs.WCFlushErr}[i == 0]; wc.ID != uint64(i) || wc.Status != want {
					t.Errorf("receive %d: %+v", i, wc)
				}
			}
			if err := b.Await(testContext(t), Recvs, wcs[:1]); !errors.Is(err, verbs.ErrDisconnected) {
				t.Errorf("awaiting more than will come: %v", err)
			}
			if err := b.PostRecv(0, in.All()); !errors.Is(err, verbs.ErrDisconnected) {
				t.Errorf("posting afterwards: %v", err)
			}
			if err := a.Post(Send(out.All())); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("posting afterwards: %v", err)
			}
			if _, err := b.AwaitAdvert(testContext(t)); !errors.Is(err, verbs.ErrDisconnected) {
				t.Errorf("awaiting an advertisement afterwards: %v", err)
			}
			check(t, in.Close()) // all is flushed
		}
	})
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	t.Cleanup(cancel)
	return ctx
}

// TestRemoteError breaks a connection by using a key that the peer has revoked: the
// request fails, others are flushed, waits end.
func TestRemoteError(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Adverts: 1}, Options{})
		theirs, remote := advertise(t, b, a, 100, ReadWrite)
		mine := labtest.Must(a.Alloc(100, LocalWrite))(t)
		check(t, a.PostRecv(5, mine.All()))
		check(t, theirs.Close())
		check(t, a.Post(Read(remote.At(0), mine.All()).With(1, 0))) // not signaled, but it fails
		var wcs [1]verbs.WC
		check(t, a.Await(testContext(t), Sends, wcs[:]))
		if wcs[0].ID != 1 || wcs[0].Status == verbs.WCSuccess {
			t.Errorf("the READ: %+v", wcs[0])
		}
		if err := a.Post(Read(remote.At(0), mine.All()).With(2, 0)); !errors.Is(err, ErrBroken) && !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("a broken connection takes requests: %v", err)
		} else if errors.Is(err, ErrBroken) && !errors.Is(err, wcs[0].Status) {
			t.Errorf("a broken connection does not say why: %v", err)
		}
		if err := a.Await(testContext(t), Sends, wcs[:]); err == nil {
			t.Errorf("awaiting more than will come gave %+v", wcs[0])
		}
		check(t, a.Await(testContext(t), Recvs, wcs[:]))
		if wcs[0].ID != 5 || wcs[0].Status != verbs.WCFlushErr {
			t.Errorf("the receive: %+v", wcs[0])
		}
		if err := a.Put(testContext(t), remote.At(0), make([]byte, 1)); err == nil {
			t.Error("a broken connection takes bytes")
		}
	})
}

// TestClose closes a connection while many goroutines use it.
func TestClose(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for round := range 5 {
			a, b := newPair(t, device, Options{Adverts: 2}, Options{Adverts: 2})
			_, remote := advertise(t, b, a, 1<<20, ReadWrite)
			mine := labtest.Must(a.Alloc(4096, ReadWrite))(t)
			ctx := testContext(t)
			var users sync.WaitGroup
			var began sync.WaitGroup
			use := func(f func() error) {
				began.Add(1)
				users.Go(func() {
					err := f()
					began.Done()
					for err == nil || errors.Is(err, verbs.ErrQueueFull) {
						err = f()
					}
				})
			}
			use(func() error { return a.Post(Write(remote.At(0), mine.All()).With(1, verbs.SendSignaled)) })
			use(func() error { return a.Post(Read(remote.At(0), mine.All()).With(2, 0)) })
			use(func() error { return a.PostRecv(3, mine.All()) })
			use(func() error { a.Poll(Sends, make([]verbs.WC, 3)); return a.Err() })
			use(func() error { return a.Put(ctx, remote.At(0), make([]byte, 300<<10)) })
			use(func() error { return a.Get(ctx, make([]byte, 300<<10), remote.At(0)) })
			users.Go(func() {
				if err := a.Await(ctx, Recvs, make([]verbs.WC, 65)); err == nil {
					t.Error("more completions than receives")
				}
			})
			users.Go(func() {
				if _, err := a.AwaitAdvert(ctx); err == nil {
					t.Error("an advertisement that was not sent")
				}
			})
			began.Wait()
			if round%2 == 0 {
				b.Close()
			}
			var closers sync.WaitGroup
			for range 2 {
				closers.Go(func() { check(t, a.Close()) })
			}
			closers.Wait()
			users.Wait()
			if ctx.Err() != nil {
				t.Fatal("something hung")
			}
			for _, err := range []error{
				a.Post(Send(mine.All())), a.PostRecv(0, mine.All()), a.PostRecvAdvert(), a.Err(),
				a.Await(ctx, Sends, make([]verbs.WC, 100)), a.Put(ctx, remote.At(0), nil), a.AwaitDisconnect(ctx),
			} {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
			check(t, mine.Close()) // no request uses it now
		}
	})
}

// TestDyingPeer kills the process of the peer while requests are in flight.
func TestDyingPeer(t *testing.T) {
	labtest.RequireKernel(t)
	if addr := os.Getenv("CONN_TEST_PEER"); addr != "" {
		c, err := dial(context.Background(), addr, Options{Adverts: 1})
		check(t, err)
		remote, err := c.AwaitAdvert(context.Background())
		check(t, err)
		r, err := c.Alloc(4096, ReadWrite)
		check(t, err)
		check(t, c.Post(Advert(0, r.All())))
		check(t, c.Put(context.Background(), remote.At(0), []byte("ready")))
		select {}
	}
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		peer := exec.Command(os.Args[0], "-test.run=^TestDyingPeer$")
		peer.Env = append(os.Environ(), "CONN_TEST_PEER="+l.Addr().String())
		check(t, peer.Start())
		killed := false
		defer func() {
			if !killed {
				peer.Process.Kill()
				peer.Wait()
			}
		}()
		var in *LocalRegion
		a := labtest.Must(labtest.Must(l.Accept(ctx))(t).Accept(ctx, Options{Adverts: 1, Setup: func(c *Conn) (err error) {
			if in, err = c.Alloc(64, ReadWrite); err != nil {
				return err
			}
			return c.PostRecv(1, in.All())
		}}))(t)
		labtest.Close(t, a)
		// The peer, which dialed, waits for this before it sends. Options.Adverts
		// has posted its receive before the connection was up.
		check(t, a.Post(Advert(0, in.All())))
		remote := labtest.Must(a.AwaitAdvert(ctx))(t)
		labtest.Until(t, "the peer", func() bool { return string(in.Bytes()[:5]) == "ready" })
		check(t, peer.Process.Kill())
		peer.Wait()
		killed = true
		check(t, a.AwaitDisconnect(ctx))
		var wcs [1]verbs.WC
		check(t, a.Await(ctx, Recvs, wcs[:]))
		if wcs[0].Status != verbs.WCFlushErr {
			t.Errorf("the receive: %+v", wcs[0])
		}
		if err := a.Put(ctx, remote.At(0), make([]byte, 10)); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("put to the dead: %v", err)
		}
		check(t, in.Close())
	})
}

// TestLeaks opens and closes connections in several ways and counts what is left.
func TestLeaks(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		before := map[string]int(nil)
		for i := range 6 {
			t.Run("round", func(t *testing.T) {
				a, b := newPair(t, device, Options{Adverts: 1}, Options{Adverts: 1})
				_, remote := advertise(t, b, a, 1<<20, ReadWrite)
				check(t, a.Put(testContext(t), remote.At(0), make([]byte, 1<<20)))
				switch i % 3 {
				case 1:
					b.Disconnect()
				case 2:
					go a.Put(testContext(t), remote.At(0), make([]byte, 1<<20))
				}
			})
			if i == 0 {
				before = labtest.SettledInventory(t)
			}
		}
		labtest.CheckLeaks(t, before)
	})
}

// TestShutdown waits for an accepted connection to end.
func TestShutdown(t *testing.T) {
	labtest.RequireBoth(t)
	l := labtest.Must(Listen(t.Context(), labtest.Addr+":0"))(t)
	accepted := make(chan *Conn, 1)
	go func() {
		if r, err := l.Accept(testContext(t)); err == nil {
			c, _ := r.Accept(testContext(t), Options{})
			accepted <- c
		}
	}()
	client := labtest.Must(dial(testContext(t), l.Addr().String(), Options{}))(t)
	labtest.Close(t, <-accepted)
	if err := l.Shutdown(ended(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a connection up: %v", err)
	}
	go client.Close()
	check(t, l.Shutdown(testContext(t)))
}

// TestCloseDuringPoll closes a connection while a goroutine polls, which may read an advertisement:
// that memory stays until it has.
func TestCloseDuringPoll(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		_, b := newPair(t, device, Options{}, Options{Adverts: 1})
		b.recv.mu.Lock() // as poll does
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		time.Sleep(20 * time.Millisecond) // Close does not wait for more than it must
		if b.recv.slots.Bytes() == nil {
			t.Error("the memory is gone")
		}
		b.recv.mu.Unlock()
		check(t, <-closed)
	})
}

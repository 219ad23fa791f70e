//go:build linux

package rmsg_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

func TestBuffers(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		opt := rmsg.Options{Eager: 1000, MaxMessage: 1 << 20}
		c, s := pair(t, device, opt, opt)
		refuse := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		refuse("alloc too much", errOf(c.Alloc(1<<20+1)), rmsg.ErrTooLarge)
		refuse("send too much", c.Send(within(t), make([]byte, 1<<20+1)), syscall.EMSGSIZE)
		refuse("alloc -1", errOf(c.Alloc(-1)), rmsg.ErrTooLarge)
		foreign := labtest.Must(s.Alloc(1))(t)
		refuse("post another connection's", c.Post(foreign), rmsg.ErrBuffer)

		for _, n := range []int{10, 5000} {
			b := labtest.Must(c.Alloc(n))(t)
			if len(b.Bytes()) != n || b.Cap() < n || b.Conn() != c {
				t.Errorf("buffer of %d of %d", len(b.Bytes()), b.Cap())
			}
			refuse("too long", b.SetLen(b.Cap()+1), verbs.ErrRange)
			refuse("too short", b.SetLen(-1), verbs.ErrRange)
			if err := b.SetLen(n); err != nil {
				t.Error(err)
			}
			// Send it repeatedly, with different lengths.
			for _, n := range []int{n, 0, b.Cap(), 3} {
				if err := b.SetLen(n); err != nil {
					t.Fatal(err)
				}
				copy(b.Bytes(), pattern(n, n))
				if err := c.Post(b); err != nil {
					t.Fatal(err)
				}
				got := labtest.Must(s.Recv(within(t)))(t)
				if string(got.Bytes()) != string(pattern(n, n)) || got.Status() != rmsg.Received {
					t.Errorf("%d bytes came, %v, not %d", len(got.Bytes()), got.Status(), n)
				}
				refuse("post a received one", s.Post(got), rmsg.ErrBuffer)
				refuse("set its length", got.SetLen(1), rmsg.ErrBuffer)
				got.Free()
				for b.Status() == rmsg.Queued {
					if err := within(t).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.Free()
			b.Free()
			if b.Status() != rmsg.Released || b.Bytes() != nil {
				t.Errorf("freed buffer: %v", b.Status())
			}
			refuse("post a freed one", c.Post(b), rmsg.ErrBuffer)
		}
		var old *rmsg.Buffer
		for i := range 100 { // several times as many as there are receives
			labtest.Check(t, c.Send(within(t), []byte{byte(i)}))
			got := labtest.Must(s.Recv(within(t)))(t)
			if old == nil {
				old = got
			}
			labtest.Check(t, old.Free())
			if i > 0 && (got.Status() != rmsg.Received || got.Bytes()[0] != byte(i) || old.Bytes() != nil) {
				t.Fatalf("message %d is %v after an earlier one was freed again", i, got.Status())
			}
			labtest.Check(t, got.Free())
		}
	})
}

// TestWouldBlock fills the send queue to a receiver that takes nothing, and then drains
// it.
func TestWouldBlock(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var heard callbackLog
		var bufs []*rmsg.Buffer
		callbacks := heard.callbacks()
		writable := callbacks.Writable
		callbacks.Writable = func(c *rmsg.Conn) {
			left := 0
			for _, b := range bufs {
				if b.Status() != rmsg.Sent {
					left++
				}
			}
			if left > 3 {
				t.Errorf("writable with %d messages in a queue of 6", left)
			}
			writable(c)
		}
		client := labtest.Must(rmsg.NewLoop(rmsg.Options{SendQueue: 6, Callbacks: callbacks}))(t)
		labtest.Close(t, client)
		ln := listen(t, run(t, rmsg.Options{Credits: 4}), device)
		c := labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		poll(t, heard.contains("established"), client)
		post := func() error {
			b := labtest.Must(c.Alloc(1))(t)
			b.Bytes()[0] = byte(len(bufs))
			err := c.Post(b)
			if err != nil {
				b.Free()
				return err
			}
			bufs = append(bufs, b)
			return nil
		}
		var err error
		for err == nil {
			if err = post(); err == nil && len(bufs) > 4 {
				poll(t, func() bool { return bufs[3].Status() == rmsg.Sent }, client)
			}
		}
		if !errors.Is(err, rmsg.ErrWouldBlock) || !errors.Is(err, syscall.EAGAIN) || len(bufs) != 10 {
			t.Errorf("after %d messages, 4 credits and a queue of 6: %v", len(bufs), err)
		}
		if bufs[9].Status() != rmsg.Queued || !errors.Is(bufs[9].Free(), rmsg.ErrBuffer) {
			t.Error("the last one is not queued")
		}
		if heard.contains("writable")() {
			t.Error("writable, with a full queue")
		}
		for i := range 10 {
			done := make(chan *rmsg.Buffer, 1)
			go func() {
				b, err := s.Recv(within(t))
				if err != nil {
					t.Error(err)
				}
				done <- b
			}()
			poll(t, func() bool { return len(done) > 0 }, client)
			b := <-done
			if b == nil || b.Bytes()[0] != byte(i) {
				t.Fatalf("message %d came out of order", i)
			}
			b.Free()
		}
		poll(t, heard.contains("writable"), client)
		if err := post(); err != nil {
			t.Error(err)
		}
	})
}

func TestStrings(t *testing.T) {
	for _, s := range []interface{ String() string }{rmsg.Free, rmsg.Released, rmsg.Connecting, rmsg.Disconnected} {
		if s.String() == "unknown" {
			t.Errorf("%#v has no name", s)
		}
	}
	if rmsg.Status(77).String() != "unknown" || rmsg.State(-1).String() != "unknown" {
		t.Error("what does not exist has a name")
	}
	for _, bad := range []rmsg.Options{
		{Credits: -1}, {Credits: 1 << 20}, {Eager: 1}, {Eager: 2 << 20}, {MaxMessage: 1<<30 + 1}, {SendQueue: -2},
		{SendBuffer: -1}, {Window: 1<<30 + 1}, {Cache: 1<<30 + 1}, {RetryCount: 8},
	} {
		if l, err := rmsg.NewLoop(bad); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("%+v: %v", bad, err)
			l.Close()
		}
	}
}

//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/uverbs"
)

// hostilePeer is a peer that connects correctly and then sends invalid frames.
type hostilePeer struct {
	t *testing.T
	e *cm.Endpoint
	m *uverbs.MR // memory for its receives, and for peers to read
}

const hostileSlot = 4096

func dialHostile(t *testing.T, addr string, private []byte) (*hostilePeer, error) {
	l := &hostilePeer{t: t}
	e, err := (&cm.Dialer{Options: cm.Options{
		PrivateData: private,
		Setup: func(e *cm.Endpoint) (err error) {
			if l.m, err = e.AllocMR(64*hostileSlot, verbs.AccessLocalWrite|verbs.AccessRemoteRead); err != nil {
				return err
			}
			for i := range 32 {
				if _, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{l.m.SGE(i*hostileSlot, hostileSlot)}}); err != nil {
					return err
				}
			}
			return nil
		},
	}}).Dial(within(t), addr)
	if err != nil {
		return nil, err
	}
	l.e = e
	labtest.Close(t, e)
	return l, nil
}

func (p *hostilePeer) send(f rmsg.Frame, more ...byte) {
	p.t.Helper()
	p.raw(append(f.Append(nil), more...))
}

// raw sends bytes, inline or from the end of the memory.
func (p *hostilePeer) raw(b []byte) {
	p.t.Helper()
	wr := verbs.SendWR{Opcode: verbs.OpSend, Inline: b}
	if len(b) > 64 {
		at := 32 * hostileSlot
		copy(p.m.Bytes()[at:], b)
		wr.Inline, wr.SGL = nil, []verbs.SGE{p.m.SGE(at, len(b))}
	}
	if _, err := p.e.QP.PostSend(wr); err != nil {
		p.t.Log("the peer's send:", err)
	}
}

// TestHostile tests that peers that violate the protocol are disconnected, that the
// connection reports the reason, and that other connections are not affected.
func TestHostile(t *testing.T) {
	hi := rmsg.Frame{Kind: rmsg.Hello, Granted: 4}
	greeted := func(frames ...rmsg.Frame) func(*hostilePeer) {
		return func(l *hostilePeer) {
			l.send(hi)
			for _, f := range frames {
				l.send(f)
			}
		}
	}
	whole := func(seq uint32) rmsg.Frame { return rmsg.Frame{Kind: rmsg.Message, Granted: 4, Seq: seq} }
	cases := []struct {
		name string
		do   func(*hostilePeer)
	}{
		{"message before hello", func(l *hostilePeer) { l.send(whole(0)) }},
		{"bye before hello", func(l *hostilePeer) { l.send(rmsg.Frame{Kind: rmsg.Bye, Granted: 4}) }},
		{"hello again and again", greeted(hi, hi, hi, hi)},
		{"no frame", func(l *hostilePeer) { l.send(hi); l.raw([]byte("x")) }},
		{"empty frame", func(l *hostilePeer) { l.send(hi); l.raw(nil) }},
		{"frame of no kind", greeted(rmsg.Frame{Kind: 77, Granted: 4})},
		{"size above the frame", greeted(rmsg.Frame{Kind: rmsg.Message, Granted: 4, Size: 5})},
		{"size below the frame", func(l *hostilePeer) { l.send(hi); l.send(whole(0), 1, 2, 3) }},
		{"frame above the receive", func(l *hostilePeer) { l.send(hi); l.raw(make([]byte, 3000)) }},
		{"message above what is sent at once", func(l *hostilePeer) {
			l.send(hi)
			l.send(rmsg.Frame{Kind: rmsg.Message, Granted: 4, Size: 2049}, make([]byte, 2048)...)
		}},
		{"message left out", greeted(whole(0), whole(2))},
		{"message twice", greeted(whole(0), whole(0))},
		{"more than its credits", greeted(whole(0), whole(1), whole(2), whole(3), whole(4))},
		{"message after bye", greeted(rmsg.Frame{Kind: rmsg.Bye, Granted: 4}, whole(0))},
		{"two byes", greeted(rmsg.Frame{Kind: rmsg.Bye, Granted: 4}, rmsg.Frame{Kind: rmsg.Bye, Granted: 4})},
		{"answer to no bye", greeted(rmsg.Frame{Kind: rmsg.Bye, Flags: 1, Granted: 4})},
		{"credits taken back", greeted(rmsg.Frame{Kind: rmsg.Ack, Granted: 3})},
		{"credits for what was not sent", greeted(rmsg.Frame{Kind: rmsg.Ack, Granted: 9})},
		{"credits without end", greeted(rmsg.Frame{Kind: rmsg.Ack, Granted: 1 << 31})},
		{"read what was not announced", greeted(rmsg.Frame{Kind: rmsg.Ack, Granted: 4, Read: 1})},
		{"announced too large", greeted(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: 1<<20 + 1})},
		{"announced as 4 GiB", greeted(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: 1<<32 - 1})},
		{"announced nothing", greeted(rmsg.Frame{Kind: rmsg.Announce, Granted: 4})},
		{"announced around the end of memory", greeted(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: 4096, Addr: 1<<64 - 1})},
	}
	// The device detects these and reports its own errors.
	late := []struct {
		name string
		do   func(*hostilePeer)
	}{
		{"key of nothing", greeted(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: 8192, Addr: 0x1000, RKey: 0x7777})},
		{"length beyond its memory", func(l *hostilePeer) {
			l.send(hi)
			l.send(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: 65 * hostileSlot, Addr: l.m.Addr(), RKey: l.m.RKey()})
		}},
		{"address outside its memory", func(l *hostilePeer) {
			l.send(hi)
			l.send(rmsg.Frame{Kind: rmsg.Announce, Granted: 4, Size: hostileSlot, Addr: l.m.Addr() + 64*hostileSlot, RKey: l.m.RKey()})
		}},
	}
	labtest.Each(t, func(t *testing.T, device string) {
		ended := make(chan error, 1)
		heard := make(chan string, 16)
		server := run(t, rmsg.Options{Credits: 4, Eager: 2048, MaxMessage: 1 << 20, Callbacks: rmsg.Callbacks{
			Request:      func(r *rmsg.Request) { r.Accept(nil) },
			Disconnected: func(s *rmsg.Conn, why error) { ended <- why },
			Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
				if len(b.Bytes()) > 0 { // from the good peer
					heard <- string(b.Bytes())
					b.Free()
				}
			},
		}})
		ln := listen(t, server, device)
		good := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Dial(within(t), ln.Addr().String()))(t)
		private := rmsg.PrivateData(3, 3, 4, 2048, 1<<20)
		ends := func(t *testing.T, do func(*hostilePeer), want ...error) {
			l, err := dialHostile(t, ln.Addr().String(), private)
			if err != nil {
				t.Fatal(err)
			}
			do(l)
			select {
			case err := <-ended:
				ok := false
				for _, w := range want {
					ok = ok || errors.Is(err, w)
				}
				if !ok {
					t.Errorf("ended with %v", err)
				}
			case <-within(t).Done():
				t.Fatal("it is let do as it likes")
			}
			select {
			case <-l.e.Done():
			case <-within(t).Done():
				t.Error("it was not disconnected")
			}
			if err := good.Send(within(t), []byte("fine")); err != nil {
				t.Fatalf("a good peer: %v", err)
			}
			select {
			case <-heard:
			case <-within(t).Done():
				t.Fatal("a good peer is not heard")
			}
		}
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				// A message that does not fit, or that finds no receive,
				// ends an iWARP connection before it is delivered.
				want := []error{rmsg.ErrProtocol}
				if labtest.IWARP(t, device) && c.name == "frame above the receive" {
					want = append(want, verbs.ErrDisconnected)
				}
				ends(t, c.do, want...)
			})
		}
		for _, c := range late {
			t.Run(c.name, func(t *testing.T) { ends(t, c.do, rmsg.ErrUnreadable, verbs.ErrDisconnected) })
		}
		for name, private := range map[string][]byte{
			"no hello":        nil,
			"something else":  []byte("GET / HTTP/1.1\r\n\r\n"),
			"another version": rmsg.PrivateData(9, 8, 4, 2048, 1<<20),
			"no credits":      rmsg.PrivateData(3, 3, 0, 2048, 1<<20),
		} {
			t.Run(name, func(t *testing.T) {
				_, err := dialHostile(t, ln.Addr().String(), private)
				if !labtest.RejectedWith(t, device, err, "") {
					t.Errorf("connected with %v", err)
				}
			})
		}
	})
}

// TestSilent tests peers that connect and then send nothing, on either side.
func TestSilent(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ended := make(chan error, 1)
		short := rmsg.Options{ConnectTimeout: 300 * time.Millisecond}
		opt := short
		opt.Callbacks = rmsg.Callbacks{
			Request:      func(r *rmsg.Request) { r.Accept(nil) },
			Disconnected: func(s *rmsg.Conn, why error) { ended <- why },
		}
		ln := listen(t, run(t, opt), device)
		if _, err := dialHostile(t, ln.Addr().String(), rmsg.PrivateData(3, 3, 4, 2048, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, rmsg.ErrTimeout) {
			t.Errorf("no hello: %v", err)
		}
		lower := labtest.Must(cm.Listen(within(t), labtest.AddrOf(device)+":0"))(t)
		labtest.Close(t, lower)
		answers := [][]byte{nil, []byte("hello yourself"), rmsg.PrivateData(4, 4, 4, 2048, 0), rmsg.PrivateData(3, 3, 4, 2048, 0)}
		go func() {
			for _, private := range answers {
				r, err := lower.Accept(t.Context())
				if err != nil {
					return
				}
				e, err := r.Accept(context.WithoutCancel(t.Context()), cm.Options{PrivateData: private, Setup: func(e *cm.Endpoint) error {
					for range 8 {
						mr, err := e.AllocMR(64, verbs.AccessLocalWrite)
						if err != nil {
							return err
						}
						if _, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
							return err
						}
					}
					return nil
				}})
				if err == nil {
					go func() { <-e.Done(); e.Close() }()
				}
			}
		}()
		patient, hasty := run(t, rmsg.Options{}), run(t, short)
		for i, want := range []error{rmsg.ErrProtocol, rmsg.ErrProtocol, rmsg.ErrVersion, rmsg.ErrTimeout} {
			l := patient
			if want == rmsg.ErrTimeout {
				l = hasty
			}
			if _, err := (&rmsg.Dialer{Loop: l}).Dial(within(t), lower.Addr().String()); !errors.Is(err, want) {
				t.Errorf("answer %q: %v, want %v", answers[i], err, want)
			}
		}
	})
}

// TestLostEnd tests a peer that has said and heard goodbye and of whose end nothing arrives.
func TestLostEnd(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ended := make(chan error, 1)
		ln := listen(t, run(t, rmsg.Options{Linger: 300 * time.Millisecond, Callbacks: rmsg.Callbacks{
			Request:      func(r *rmsg.Request) { r.Accept(nil) },
			Disconnected: func(s *rmsg.Conn, why error) { ended <- why },
		}}), device)
		p := labtest.Must(dialHostile(t, ln.Addr().String(), rmsg.PrivateData(3, 3, 4, 2048, 1<<20)))(t)
		p.send(rmsg.Frame{Kind: rmsg.Hello, Granted: 4})
		p.send(rmsg.Frame{Kind: rmsg.Bye, Granted: 4})
		if err := <-ended; err != io.EOF {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestPeerLeaves tests a peer that disconnects and leaves while messages wait for its credits, and a
// side that closes then: whether this side disconnects too or not, it learns that they are lost.
func TestPeerLeaves(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for _, disconnects := range []bool{false, true} {
			for _, closes := range []bool{false, true} {
				c, s := pair(t, device, rmsg.Options{}, rmsg.Options{Credits: 1})
				for range 3 {
					labtest.Check(t, c.Send(within(t), []byte("x")))
				}
				if disconnects {
					c.Disconnect()
				}
				s.Disconnect()
				labtest.Until(t, "the goodbye to arrive", c.HeardBye)
				want := verbs.ErrDisconnected
				if closes {
					want = verbs.ErrClosed
					c.Close()
				}
				s.Close()
				<-c.Done()
				if err := c.Err(); !errors.Is(err, want) {
					t.Errorf("ended with %v, want %v", err, want)
				}
				if err := c.Shutdown(within(t)); !errors.Is(err, want) {
					t.Errorf("Shutdown: %v, want %v", err, want)
				}
			}
		}
	})
}

// TestVersion tests the error for a peer without a version in common.
func TestVersion(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		lower := labtest.Must(cm.Listen(within(t), labtest.AddrOf(device)+":0"))(t)
		labtest.Close(t, lower)
		go func() {
			if r, err := lower.Accept(t.Context()); err == nil {
				r.Reject(rmsg.PrivateData(9, 8, 4, 2048, 0))
			}
		}()
		_, err := (&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Dial(within(t), lower.Addr().String())
		if !errors.Is(err, rmsg.ErrVersion) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("dial one of another version: %v", err)
		}
	})
}

//go:build linux

package cm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// newChannel returns a channel, an ID on it that listens, and the ID's address.
func newChannel(t *testing.T, tr *cm.Transport, device string) (*cm.Channel, *cm.ID, netip.AddrPort) {
	t.Helper()
	ch := labtest.Made(tr.NewChannel())(t)
	l := labtest.Made(ch.NewID(0))(t)
	if err := errors.Join(l.Bind(netip.MustParseAddrPort(labtest.AddrOf(device)+":0")), l.Listen(0)); err != nil {
		t.Fatal(err)
	}
	return ch, l, labtest.Must(l.Route())(t).Local
}

// resolving returns a new ID that resolves addr.
func resolving(t *testing.T, ch *cm.Channel, addr netip.AddrPort) *cm.ID {
	t.Helper()
	id := labtest.Must(ch.NewID(0))(t)
	if err := id.ResolveAddr(netip.AddrPort{}, addr, time.Second); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestChannel makes both ends of many connections in one goroutine. Each connection
// carries private data both ways and a message, after which another goroutine ends the
// connection; every third is rejected.
func TestChannel(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		t.Run("many", func(t *testing.T) { testChannel(t, device) })
		labtest.CheckLeaks(t, before)
	})
}

func testChannel(t *testing.T, device string) {
	const conns = 30
	ctx := within(t, 60*time.Second)
	ch, l, addr := newChannel(t, cm.DefaultTransport(), device)
	type end struct {
		number byte
		mr     *uverbs.MR
	}
	options := func(id *cm.ID, number byte, text string) cm.Options {
		mine := &end{number: number}
		id.Tag = mine
		return cm.Options{
			PrivateData: append([]byte{number}, text...),
			Setup: func(e *cm.Endpoint) (err error) {
				if mine.mr, err = e.AllocMR(100, verbs.AccessLocalWrite); err == nil {
					_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mine.mr.SGE(0, 100)}})
				}
				return err
			},
		}
	}
	said := func(e *cm.Endpoint, number byte, text string) {
		t.Helper()
		if want := append([]byte{number}, text...); !bytes.Equal(bytes.TrimRight(e.PrivateData, "\x00"), want) {
			t.Errorf("private data %q, not %q", e.PrivateData, want)
		}
	}
	serve := func(e *cm.Endpoint, mine *end) {
		var wc [1]verbs.WC
		if _, err := e.RecvCQ.PollWait(ctx, wc[:]); err != nil || wc[0].Err() != nil || wc[0].ByteLen != 1 || mine.mr.Bytes()[0] != mine.number {
			t.Errorf("%v, %v: %d bytes, for %d", err, wc[0].Err(), wc[0].ByteLen, mine.number)
		}
		if mine.number%2 == 0 {
			e.Disconnect()
		} else if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	var serving sync.WaitGroup
	for i := range conns {
		resolving(t, ch, addr).Tag = byte(i + 1)
	}
	up, rejected, ended := 0, 0, 0
	for rejected+ended < conns {
		ev := labtest.Must(ch.Next(ctx))(t)
		var err error
		switch ev.Type {
		case cm.AddrResolved:
			err = ev.ID.ResolveRoute(time.Second)
		case cm.RouteResolved:
			_, err = ch.Connect(ev, options(ev.ID, ev.ID.Tag.(byte), "calls"))
		case cm.ConnectRequest:
			if ev.ID != l {
				t.Errorf("a request at %p, not %p", ev.ID, l)
			}
			number := ev.PrivateData[0]
			if number%3 == 0 {
				err = errors.Join(ev.NewID.Reject([]byte("no")), ev.NewID.Close())
				break
			}
			var e *cm.Endpoint
			if e, err = ch.Accept(ev, options(ev.NewID, number, "answers")); err == nil {
				said(e, number, "calls")
			}
		case cm.Rejected:
			rejected++
			if !errors.Is(ev.Err(), unix.ECONNREFUSED) {
				t.Error(ev.Err())
			}
			err = ev.Endpoint.Close()
		case cm.Established:
			up++
			mine := ev.ID.Tag.(*end)
			if ev.Endpoint.ID() != ev.ID {
				t.Errorf("the endpoint of %p is that of %p", ev.ID, ev.Endpoint.ID())
			}
			dialed := ev.Endpoint.RemoteAddr().AddrPort == addr
			if dialed {
				said(ev.Endpoint, mine.number, "answers")
				_, err = ev.Endpoint.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte{mine.number}})
				break
			}
			serving.Go(func() { serve(ev.Endpoint, mine) })
		case cm.Disconnected:
			select {
			case <-ev.Endpoint.Done():
			default:
				t.Error("an endpoint was not told of its end")
			}
			if ev.Endpoint.RemoteAddr().AddrPort == addr {
				ended++
			}
			err = ev.Endpoint.Close()
		default:
			if err = ev.Err(); err == nil {
				continue
			}
		}
		if err != nil {
			t.Fatalf("%v: %v", ev.Type, err)
		}
	}
	if want := 2 * (conns - conns/3); up != want || rejected != conns/3 {
		t.Errorf("%d ends up, not %d; %d connections rejected", up, want, rejected)
	}
	serving.Wait()
	// The last events of some accepted ends are still to come.
	for quiet := 0; quiet < 2; {
		brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		ev, err := ch.Next(brief)
		cancel()
		switch {
		case err != nil:
			quiet++
		case ev.Endpoint != nil:
			ev.Endpoint.Close()
		}
	}
}

// TestChannelWait checks that Next ends with its context, with the channel, and when another
// goroutine adds an event, and that it returns no event of a closed ID.
func TestChannelWait(t *testing.T) {
	labtest.Require(t)
	ch, _, addr := newChannel(t, cm.DefaultTransport(), labtest.RoCE)
	for _, d := range []time.Duration{0, 5 * time.Millisecond, 100 * time.Millisecond} {
		if _, err := ch.Next(within(t, d)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no event in %v: %v", d, err)
		}
	}
	closed := resolving(t, ch, addr)
	labtest.Until(t, "its event", func() bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(ch.FD()), Events: unix.POLLIN}}, 0)
		return n == 1
	})
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	open := resolving(t, ch, addr)
	ev, err := ch.Next(within(t, 5*time.Second))
	if err != nil || ev.ID != open || ev.Type != cm.AddrResolved {
		t.Errorf("%+v, %v", ev, err)
	}
	if _, err := ch.Connect(ev, cm.Options{}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("connecting without a route: %v", err)
	}
	if _, err := ch.Accept(ev, cm.Options{}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("accepting what nobody asks for: %v", err)
	}

	labtest.Check(t, open.Close())
	for _, wait := range []time.Duration{0, 5 * time.Millisecond, 100 * time.Millisecond} {
		ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
		id := labtest.Must(ch.NewID(0))(t)
		time.AfterFunc(wait, func() { ch.Close() })
		if _, err := ch.Next(within(t, 5*time.Second)); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("closed after %v: %v", wait, err)
		}
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
		if _, err := ch.NewID(0); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("an ID on a closed channel: %v", err)
		}
		id.Close()
	}
}

// TestJoin joins and leaves multicast groups, one of them twice.
func TestJoin(t *testing.T) {
	labtest.Require(t)
	id := labtest.NewID(t, cm.PortSpaceUDP)
	labtest.Check(t, id.Bind(netip.MustParseAddrPort(labtest.Addr+":0")))
	for _, addr := range []string{"239.1.2.3", "239.1.2.4", "239.1.2.3"} {
		group := netip.MustParseAddr(addr)
		labtest.Check(t, id.Join(group, false))
		if e := labtest.Expect(t, id, cm.MulticastJoin); e.QPNum != 0xffffff || e.AV.DGID.Addr() != group {
			t.Errorf("%+v", e)
		}
		labtest.Check(t, id.Leave(group))
		labtest.Check(t, id.Leave(group)) // is no member
	}
	labtest.Check(t, id.Join(netip.MustParseAddr("239.1.2.5"), true)) // until the ID is closed
}

// TestChannelDatagrams makes two datagram endpoints, and sends from one to the other.
func TestChannelDatagrams(t *testing.T) {
	labtest.Require(t)
	ctx := within(t, 20*time.Second)
	ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
	l, client := labtest.Must(ch.NewID(cm.PortSpaceUDP))(t), labtest.Must(ch.NewID(cm.PortSpaceUDP))(t)
	labtest.Close(t, l)
	if err := errors.Join(l.Bind(netip.MustParseAddrPort(labtest.Addr+":0")), l.Listen(0)); err != nil {
		t.Fatal(err)
	}
	if err := client.ResolveAddr(netip.AddrPort{}, labtest.Must(l.Route())(t).Local, time.Second); err != nil {
		t.Fatal(err)
	}
	var server *cm.Datagrams
	opt := cm.Options{}
	for up := false; !up; {
		ev := labtest.Must(ch.Next(ctx))(t)
		var err error
		switch ev.Type {
		case cm.AddrResolved:
			err = ev.ID.ResolveRoute(time.Second)
		case cm.RouteResolved:
			_, err = ch.Connect(ev, opt)
		case cm.ConnectRequest:
			accept := opt
			accept.Setup = func(e *cm.Endpoint) (err error) {
				labtest.Close(t, e)
				server, err = cm.NewDatagrams(e, 100)
				return err
			}
			var e *cm.Endpoint
			if e, err = ch.Accept(ev, accept); err == nil && e.Info().State != "connected" {
				t.Errorf("an accepted endpoint is %+v", e.Info())
			}
		case cm.Established:
			labtest.Close(t, ev.Endpoint)
			d := labtest.Must(cm.NewDatagrams(ev.Endpoint, 100))(t)
			err = d.Send(ctx, ev.Endpoint.Peer, []byte("hello"))
			up = true
		default:
			err = ev.Err()
		}
		if err != nil {
			t.Fatalf("%v: %v", ev.Type, err)
		}
	}
	b := make([]byte, 100)
	m, err := server.Recv(ctx, b)
	if err != nil || string(b[:m.Len]) != "hello" {
		t.Errorf("%q, %v", b[:m.Len], err)
	}
}

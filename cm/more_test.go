package cm_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestLookup(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		p, err := cm.Lookup(t.Context(), labtest.AddrOf(device))
		if device == labtest.SIW { // has no port space for datagrams, but a route
			t.Log(p, err)
		}
		if err != nil || p.Device.Name != device || p.Port != 1 || p.Local.String() != labtest.AddrOf(device) {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

func TestNoRoute(t *testing.T) {
	labtest.Require(t)
	_, err := cm.Lookup(within(t, 10*time.Second), "192.0.2.1")
	if !errors.Is(err, cm.ErrNoRoute) || !strings.Contains(err.Error(), "no RDMA device on route to 192.0.2.1; devices: rxe0 on v0 (10.9.0.1 fd00:9::1), siw0") {
		t.Error(err)
	}
}

// TestOptions sets every option there is.
func TestOptions(t *testing.T) {
	labtest.Require(t)
	ch := labtest.Must(cm.NewChannel())(t)
	labtest.Close(t, ch)
	id := labtest.Must(ch.NewID())(t)
	labtest.Close(t, id)
	any6 := netip.MustParseAddrPort("[::]:0")
	if err := errors.Join(id.SetTOS(32), id.SetReuseAddr(true), id.SetAFOnly(true), id.SetAckTimeout(15), id.Bind(any6)); err != nil {
		t.Error(err)
	}
	if err := id.SetPath(nil); err == nil {
		t.Error("an empty path was taken")
	}
	// Another may have the same port, as long as none listens.
	r := labtest.Must(id.Route())(t)
	other := labtest.Must(ch.NewID())(t)
	labtest.Close(t, other)
	if err := errors.Join(other.SetReuseAddr(true), other.SetAFOnly(true), other.Bind(r.Local), other.Close(), id.Listen(1)); err != nil {
		t.Error(err)
	}
}

// TestMigrate moves an ID with an event on it, and goes on on the new channel.
func TestMigrate(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		from, to := labtest.Must(cm.NewChannel())(t), labtest.Must(cm.NewChannel())(t)
		labtest.Close(t, from)
		labtest.Close(t, to)
		for range 20 {
			id := labtest.Must(from.NewID())(t)
			dst := netip.MustParseAddrPort(labtest.AddrOf(device) + ":9")
			if err := id.ResolveAddr(netip.AddrPort{}, dst, time.Second); err != nil {
				t.Fatal(err)
			}
			if err := id.Migrate(to); err != nil {
				t.Fatal(err)
			}
			if e, err := id.Next(within(t, 5*time.Second)); err != nil || e.Type != cm.AddrResolved {
				t.Fatal(e, err)
			}
			if err := id.ResolveRoute(time.Second); err != nil {
				t.Fatal(err)
			}
			if e, err := id.Next(within(t, 5*time.Second)); err != nil || e.Type != cm.RouteResolved {
				t.Fatal(e, err)
			}
			paths, err := id.Paths()
			if err != nil || device == labtest.RXE && len(paths) == 0 {
				t.Error(paths, err)
			}
			if err := id.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUserEvent sends an ID an event of the program's own, where the kernel
// can.
func TestUserEvent(t *testing.T) {
	labtest.Require(t)
	ch := labtest.Must(cm.NewChannel())(t)
	labtest.Close(t, ch)
	id := labtest.Must(ch.NewID())(t)
	labtest.Close(t, id)
	err := id.WriteEvent(7, 0x1122334455667788)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Log("the kernel refuses:", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if e, err := id.Next(within(t, 5*time.Second)); err != nil || e.Type != cm.User || e.Status != 7 || e.Arg != 0x1122334455667788 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestPortSpaces(t *testing.T) {
	labtest.Require(t)
	ch := labtest.Must(cm.NewChannel())(t)
	labtest.Close(t, ch)
	for _, space := range []cm.PortSpace{cm.PortSpaceTCP, cm.PortSpaceUDP, cm.PortSpaceIPoIB, cm.PortSpaceIB} {
		id := labtest.Must(ch.NewIDIn(space))(t)
		if id.PortSpace() != space {
			t.Errorf("port space %#x", id.PortSpace())
		}
		labtest.Close(t, id)
	}
	if _, err := ch.NewIDIn(0x7777); err == nil {
		t.Error("an absurd port space was taken")
	}
}

// TestDatagrams answers datagrams to where they came from.
func TestDatagrams(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		options := cm.Options{Events: true, PrivateData: []byte("hi")}
		l, err := cm.ListenOptions{PortSpace: cm.PortSpaceUDP}.Listen(ctx, labtest.AddrOf(device)+":0")
		if device == labtest.SIW {
			if err == nil {
				_, err = (&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: options}).Dial(ctx, l.Addr().String())
				l.Close()
			}
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("iWARP has no datagrams: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		labtest.Close(t, l)
		served := make(chan error, 1)
		go func() { served <- echo(ctx, l, options) }()
		e := labtest.Must((&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: options}).Dial(ctx, l.Addr().String()))(t)
		labtest.Close(t, e)
		if !strings.HasPrefix(string(e.PrivateData), "hi") || e.Peer.QPNum == 0 || e.Peer.QKey == 0 {
			t.Errorf("private data %q, peer %+v", e.PrivateData, e.Peer)
		}
		d := labtest.Must(cm.NewDatagrams(e, 1000))(t)
		for i := range 200 {
			msg := strings.Repeat("x", i*5)
			if err := d.Send(ctx, e.Peer, []byte(msg)); err != nil {
				t.Fatal(err)
			}
			var buf [1000]byte
			n, from, err := d.Recv(ctx, buf[:])
			if err != nil || string(buf[:n]) != msg || from.QPNum != e.Peer.QPNum {
				t.Fatalf("%d: %d bytes from %+v, %v", i, n, from, err)
			}
		}
		if m, err := immediate(ctx, d, e.Peer); err != nil || !m.WithImm || m.Imm != 0x12345678 || m.From.QPNum != e.Peer.QPNum {
			t.Errorf("a message with an immediate came back as %+v, %v", m, err)
		}
		if err := d.Send(ctx, e.Peer, []byte("end")); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := d.Send(ctx, e.Peer, make([]byte, 1001)); !errors.Is(err, uverbs.ErrMessageTooLong) {
			t.Errorf("a datagram too long: %v", err)
		}
	})
}

func echo(ctx context.Context, l *cm.Listener, opt cm.Options) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	e, err := r.Accept(ctx, opt)
	if err != nil {
		return err
	}
	defer e.Close()
	d, err := cm.NewDatagrams(e, 1000)
	if err != nil {
		return err
	}
	var buf [1000]byte
	for {
		m, err := d.RecvDatagram(ctx, buf[:])
		if err != nil || string(buf[:m.Len]) == "end" {
			return err
		}
		if m.WithImm {
			err = d.SendImm(ctx, m.From, buf[:m.Len], m.Imm)
		} else {
			err = d.Send(ctx, m.From, buf[:m.Len])
		}
		if err != nil {
			return err
		}
	}
}

// immediate sends a message with one, and returns what came back.
func immediate(ctx context.Context, d *cm.Datagrams, to uverbs.UDAddr) (cm.Datagram, error) {
	if err := d.SendImm(ctx, to, []byte("x"), 0x12345678); err != nil {
		return cm.Datagram{}, err
	}
	return d.RecvDatagram(ctx, make([]byte, 10))
}

// TestMulticast sends to a group that two are in, and one only sends to.
func TestMulticast(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		d := cm.Dialer{Options: cm.Options{Events: true}, LocalAddr: netip.MustParseAddrPort(labtest.AddrOf(device) + ":0")}
		join := func(sendOnly bool) (*cm.Member, *cm.Datagrams, error) {
			m, err := d.Join(ctx, "239.1.2.3", sendOnly)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			g, err := cm.NewDatagrams(m.Endpoint, 900)
			return m, g, err
		}
		m1, g1, err := join(false)
		if device == labtest.SIW {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("iWARP has no multicast: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		_, g2, err := join(false)
		if err != nil {
			t.Fatal(err)
		}
		if m1.To.QPNum != 0xffffff || m1.QKey == 0 {
			t.Errorf("group %+v", m1.Group)
		}
		if err := g1.Send(ctx, m1.To, []byte("to all")); err != nil {
			t.Fatal(err)
		}
		var buf [100]byte
		if n, _, err := g2.Recv(ctx, buf[:]); err != nil || string(buf[:n]) != "to all" {
			t.Errorf("%q, %v", buf[:n], err)
		}
	})
}

// TestShutdown waits for connections that were accepted, but no longer than
// told.
func TestShutdown(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		l := labtest.Must(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				e, _ := r.Accept(ctx, cm.Options{})
				accepted <- e
			}
			_, err := l.Accept(ctx)
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept after shutdown: %v", err)
			}
		}()
		client := labtest.Must(cm.Dial(ctx, l.Addr().String()))(t)
		server := <-accepted
		labtest.Close(t, server)
		if err := l.Shutdown(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shut down with a connection up: %v", err)
		}
		if _, err := cm.Dial(within(t, 5*time.Second), l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial after shutdown: %v", err)
		}
		time.AfterFunc(50*time.Millisecond, func() { client.Close() })
		if err := l.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
}

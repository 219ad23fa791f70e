package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

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
	var d *cm.Datagrams
	opt.Setup = func(e *cm.Endpoint) (err error) { // before the peer can send
		d, err = cm.NewDatagrams(e, 1000)
		return err
	}
	e, err := r.Accept(ctx, opt)
	if err != nil {
		return err
	}
	defer e.Close()
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

// TestForgottenSenders has more send than can be answered: the oldest are
// forgotten, until they send again.
func TestForgottenSenders(t *testing.T) {
	labtest.Require(t)
	ctx := within(t, 60*time.Second)
	l := labtest.Must(cm.ListenOptions{PortSpace: cm.PortSpaceUDP}.Listen(ctx, labtest.AddrOf(labtest.RXE)+":0"))(t)
	labtest.Close(t, l)
	served := make(chan error, 1)
	go func() { served <- echo(ctx, l, cm.Options{Events: true}) }()
	e := labtest.Must((&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: cm.Options{Events: true}}).Dial(ctx, l.Addr().String()))(t)
	labtest.Close(t, e)
	d := labtest.Must(cm.NewDatagrams(e, 10))(t)
	// Each source address and traffic class is another sender, who sends to us.
	const addresses, classes, kept = 2, 64, 100
	if err := d.KeepSenders(kept); err != nil {
		t.Fatal(err)
	}
	var gids [addresses]uint8
	for i := range gids {
		addr := fmt.Sprintf("10.9.0.%d", 100+i)
		ip := func(do string) error { return exec.Command("ip", "addr", do, addr+"/24", "dev", "v0").Run() }
		if err := ip("add"); err != nil {
			t.Fatal(err)
		}
		defer ip("del")
		gids[i] = uint8(waitGID(t, e.PD.Context(), netip.MustParseAddr(addr)).Index)
	}
	attr := labtest.Must(e.QP.Query())(t)
	from := func(i int) uverbs.UDAddr {
		ah := labtest.Must(e.PD.CreateAH(uverbs.AddressVector{
			Global: true, DGID: netip.MustParseAddr(labtest.AddrOf(labtest.RXE)).As16(), SGIDIndex: gids[i/classes],
			TrafficClass: uint8(i%classes) << 2, HopLimit: 64, Port: 1,
		}))(t)
		defer ah.Close()
		if err := d.Send(ctx, ah.To(e.QP.Num(), attr.QKey), []byte("x")); err != nil {
			t.Fatal(err)
		}
		_, from, err := d.Recv(ctx, make([]byte, 10))
		if err != nil {
			t.Fatal(err)
		}
		return from
	}
	answer := func(to uverbs.UDAddr) error {
		err := d.Send(ctx, to, []byte("y"))
		if err == nil {
			_, _, err = d.Recv(ctx, make([]byte, 10))
		}
		return err
	}
	first := from(0)
	if err := answer(first); err != nil {
		t.Fatal(err)
	}
	var last uverbs.UDAddr
	for i := range kept {
		last = from(1 + i)
	}
	if err := answer(first); !errors.Is(err, cm.ErrSenderForgotten) {
		t.Errorf("the first is answered: %v", err)
	}
	for _, to := range []uverbs.UDAddr{last, from(0)} {
		if err := answer(to); err != nil {
			t.Error(err)
		}
	}
	if err := d.Send(ctx, e.Peer, []byte("end")); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// waitGID waits for the device to have an address.
func waitGID(t *testing.T, c *uverbs.Context, addr netip.Addr) uverbs.GIDEntry {
	t.Helper()
	for range 200 {
		if g, err := c.FindGID(1, addr); err == nil {
			return g
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no GID of ", addr)
	return uverbs.GIDEntry{}
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

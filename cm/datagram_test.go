//go:build linux

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestDatagramsRefused asks for datagrams where nobody listens, and where the program rejects it.
func TestDatagramsRefused(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.IWARP(t, device) {
			t.Skip("iWARP has no datagrams")
		}
		ctx := within(t, 20*time.Second)
		d := cm.Dialer{PortSpace: cm.PortSpaceUDP}
		l := labtest.Made((&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				r.Reject([]byte("no"))
			}
			if r, err := l.Accept(ctx); err == nil {
				if err := r.Reject(make([]byte, 137)); !errors.Is(err, cm.ErrPrivateData) {
					t.Errorf("rejected with 137 bytes: %v", err)
				}
			}
		}()
		_, err := d.Dial(ctx, l.Addr().String())
		if e, ok := errors.AsType[*cm.RejectedError](err); !ok || !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(string(e.PrivateData), "no") {
			t.Errorf("rejected: %v", err)
		}
		if _, err := d.Dial(ctx, l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("rejected with too much: %v", err)
		}
		l.Close()
		if _, err = d.Dial(ctx, l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "no listener") {
			t.Errorf("without a listener: %v", err)
		}
	})
}

// TestDatagrams sends datagrams to an endpoint that answers their sender.
func TestDatagrams(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		options := cm.Options{PrivateData: []byte("hi")}
		l, err := (&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, labtest.AddrOf(device)+":0")
		if labtest.IWARP(t, device) {
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
		e := labtest.Made((&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: options}).Dial(ctx, l.Addr().String()))(t)
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
			m, err := d.Recv(ctx, buf[:])
			if err != nil || string(buf[:m.Len]) != msg || m.From.QPNum != e.Peer.QPNum || m.WithImm {
				t.Fatalf("%d: %+v, %v", i, m, err)
			}
		}
		m, err := immediate(ctx, d, e.Peer)
		if err != nil || !m.WithImm || m.Imm != 0x12345678 || m.From.QPNum != e.Peer.QPNum {
			t.Errorf("a message with an immediate came back as %+v, %v", m, err)
		}
		if want := fmt.Sprintf("QP %d of %v", e.Peer.QPNum, labtest.AddrOf(device)); m.From.String() != want {
			t.Errorf("the sender is %v, not %s", m.From, want)
		}
		if err := d.Send(ctx, e.Peer, []byte("end")); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := d.Send(ctx, e.Peer, make([]byte, 1001)); !errors.Is(err, verbs.ErrMessageTooLong) {
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
	if i := e.Info(); i.State != "connected" || i.Since.IsZero() {
		return fmt.Errorf("an accepted endpoint is %+v", i)
	}
	var buf [1000]byte
	for {
		m, err := d.Recv(ctx, buf[:])
		if err != nil || string(buf[:m.Len]) == "end" {
			return err
		}
		if m.WithImm {
			err = d.ReplyImm(ctx, m.From, buf[:m.Len], m.Imm)
		} else {
			err = d.Reply(ctx, m.From, buf[:m.Len])
		}
		if err != nil {
			return err
		}
	}
}

// immediate sends a message with immediate data, and returns the answer.
func immediate(ctx context.Context, d *cm.Datagrams, to verbs.UDAddr) (cm.Datagram, error) {
	if err := d.SendImm(ctx, to, []byte("x"), 0x12345678); err != nil {
		return cm.Datagram{}, err
	}
	return d.Recv(ctx, make([]byte, 10))
}

// TestMaxSenders answers more senders than the cache has handles for.
func TestMaxSenders(t *testing.T) {
	labtest.RequireKernel(t)
	ctx := within(t, 60*time.Second)
	var d *cm.Datagrams
	e, _ := datagramPair(ctx, t, cm.Options{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1024, MaxSendSGE: 1, MaxRecvSGE: 1}, Setup: func(e *cm.Endpoint) (err error) {
		d, err = cm.NewDatagrams(e, 10)
		return err
	}})
	// Each source address and traffic class is another sender. All send from d to d.
	const addresses, kept = 2, 10
	classes := labtest.Rounds(64, 8)
	d.SetMaxSenders(kept)
	var senders []cm.Sender
	for i := range addresses {
		addr := netip.MustParseAddr(fmt.Sprint(labtest.Addr, i))
		gid := uint8(addAddr(t, e.PD.Context(), addr).Index)
		for class := range classes {
			senders = append(senders, sendFrom(ctx, t, e, d, verbs.AddressVector{
				Global: true, DGID: netip.MustParseAddr(labtest.Addr).As16(), SGIDIndex: gid,
				TrafficClass: uint8(class) << 2, HopLimit: 64, Port: 1,
			}))
			if got := senders[len(senders)-1].Addr(); got != addr {
				t.Errorf("a datagram from %v says %v", addr, got)
			}
		}
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range senders {
				to := senders[(i*(w+1)+w*7)%len(senders)]
				if err := d.Reply(ctx, to, []byte("y")); err != nil {
					t.Errorf("answer %d: %v", i, err)
				}
				if _, err := d.Recv(ctx, make([]byte, 10)); err != nil { // d gets the answers
					t.Errorf("answer %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

// datagramPair returns the two ends of a datagram dial.
func datagramPair(ctx context.Context, t *testing.T, opt cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	client, server = labtest.ConnectIn(ctx, t, cm.PortSpaceUDP, labtest.Addr+":0", opt, cm.Options{})
	labtest.Close(t, client)
	labtest.Close(t, server)
	return client, server
}

// addAddr adds an address to the interface of labtest.RoCE until the test ends.
func addAddr(t *testing.T, c *uverbs.Context, addr netip.Addr) verbs.GIDEntry {
	t.Helper()
	ip := func(do string) error {
		return exec.Command("ip", "addr", do, addr.String()+"/24", "dev", labtest.LinkOf(labtest.RoCE)).Run()
	}
	if err := ip("add"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ip("del") })
	return waitGID(t, c, addr)
}

// sendFrom sends a datagram from the endpoint to itself and returns its sender.
func sendFrom(ctx context.Context, t *testing.T, e *cm.Endpoint, d *cm.Datagrams, av verbs.AddressVector) cm.Sender {
	t.Helper()
	attr := labtest.Must(e.QP.Query())(t)
	ah := labtest.Must(e.PD.CreateAH(av))(t)
	defer ah.Close()
	if err := d.Send(ctx, ah.To(e.QP.Num(), attr.QKey), []byte("x")); err != nil {
		t.Fatal(err)
	}
	return labtest.Must(d.Recv(ctx, make([]byte, 10)))(t).From
}

// TestReplyIPv6 answers a sender whose IPv6 address looks like an IPv4 header
// where RoCE v2 puts one.
func TestReplyIPv6(t *testing.T) {
	labtest.RequireKernel(t)
	ctx := within(t, 20*time.Second)
	var d *cm.Datagrams
	e, _ := datagramPair(ctx, t, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
		d, err = cm.NewDatagrams(e, 10)
		return err
	}})
	addr := netip.MustParseAddr("fd00:9::4500:77")
	gid := addAddr(t, e.PD.Context(), addr)
	from := sendFrom(ctx, t, e, d, verbs.AddressVector{Global: true, DGID: addr.As16(), SGIDIndex: uint8(gid.Index), HopLimit: 64, Port: 1})
	if from.Addr() != addr {
		t.Errorf("the sender is %v", from.Addr())
	}
	if err := d.Reply(ctx, from, []byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recv(ctx, make([]byte, 10)); err != nil {
		t.Error(err)
	}
}

// waitGID waits until the device has a GID for an address, and returns it.
func waitGID(t *testing.T, c *uverbs.Context, addr netip.Addr) verbs.GIDEntry {
	t.Helper()
	var g verbs.GIDEntry
	labtest.Until(t, "a GID of "+addr.String(), func() (ok bool) {
		var err error
		g, err = c.FindGID(1, addr)
		return err == nil
	})
	return g
}

// TestMulticast sends a message from one member of a group to another.
func TestMulticast(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		d := cm.Dialer{Options: cm.Options{}, LocalAddr: netip.MustParseAddrPort(labtest.AddrOf(device) + ":0")}
		join := func(sendOnly bool) (*cm.Endpoint, *cm.Datagrams, error) {
			m, err := d.Join(ctx, "239.1.2.3", sendOnly)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			if i := m.Info(); i.State != "connected" {
				t.Errorf("a member is %+v", i)
			}
			g, err := cm.NewDatagrams(m, 900)
			return m, g, err
		}
		m1, g1, err := join(false)
		if labtest.IWARP(t, device) {
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
		d.PortSpace = cm.PortSpaceIPoIB
		if _, _, err := join(false); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("in IPoIB's port space, which RoCE does not have: %v", err)
		}
		d.PortSpace = cm.PortSpaceTCP
		if _, _, err := join(false); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("in a port space of connections: %v", err)
		}
		if m1.Peer.QPNum != 0xffffff || m1.Peer.QKey == 0 {
			t.Errorf("group %+v", m1.Peer)
		}
		if err := g1.Send(ctx, m1.Peer, []byte("to all")); err != nil {
			t.Fatal(err)
		}
		var buf [100]byte
		if m, err := g2.Recv(ctx, buf[:]); err != nil || string(buf[:m.Len]) != "to all" {
			t.Errorf("%q, %v", buf[:m.Len], err)
		}
	})
}

// TestDatagramSize asks for buffers that cannot work.
func TestDatagramSize(t *testing.T) {
	labtest.Require(t)
	l := labtest.Made((&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(t.Context(), labtest.AddrOf(labtest.RoCE)+":0"))(t)
	sized := func(size func(mtu int) int) error {
		_, err := (&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: cm.Options{Setup: func(e *cm.Endpoint) error {
			port := labtest.Must(e.PD.Context().QueryPort(1))(t)
			if _, err := cm.NewDatagrams(e, size(port.ActiveMTU.Bytes())); err != nil {
				return err
			}
			return errors.ErrUnsupported // enough
		}}}).Dial(t.Context(), l.Addr().String())
		return err
	}
	for name, c := range map[string]struct {
		size func(mtu int) int
		want error
	}{
		"less than a GRH": {func(int) int { return -verbs.GRHSize - 1 }, verbs.ErrRange},
		"negative":        {func(int) int { return -1 }, verbs.ErrRange},
		"zero":            {func(int) int { return 0 }, verbs.ErrRange},
		"one":             {func(int) int { return 1 }, errors.ErrUnsupported},
		"MTU":             {func(mtu int) int { return mtu }, errors.ErrUnsupported},
		"above the MTU":   {func(mtu int) int { return mtu + 1 }, verbs.ErrRange},
	} {
		if err := sized(c.size); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDatagramQueues makes Datagrams on endpoints whose completions it could not tell from those of
// other endpoints, or not wait for.
func TestDatagramQueues(t *testing.T) {
	c := labtest.OpenDevice(t, labtest.RoCE)
	pd := labtest.Made(c.AllocPD())(t)
	cq := labtest.Made(c.CreateCQ(uverbs.CQOptions{Depth: 1024}))(t)
	srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{}))(t)
	l := labtest.Made((&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(t.Context(), labtest.AddrOf(labtest.RoCE)+":0"))(t)
	for option, opt := range map[string]cm.Options{
		"SRQ":    {SRQ: srq},
		"SendCQ": {SendCQ: cq},
		"RecvCQ": {RecvCQ: cq},
		"Polled": {Polled: true},
	} {
		opt.PD = pd
		opt.Setup = func(e *cm.Endpoint) error {
			_, err := cm.NewDatagrams(e, 100)
			if err == nil {
				err = errors.New("NewDatagrams succeeded")
			}
			return err
		}
		_, err := (&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: opt}).Dial(t.Context(), l.Addr().String())
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "Options."+option) {
			t.Errorf("with %s: %v", option, err)
		}
	}
}

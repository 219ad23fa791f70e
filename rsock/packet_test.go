//go:build linux

package rsock_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// listenPacket opens a PacketConn, which is closed when the test ends, with a deadline.
func listenPacket(t *testing.T, addr string, lc rsock.ListenConfig) *rsock.PacketConn {
	t.Helper()
	c := labtest.Must(lc.ListenPacket(t.Context(), "rdma", addr))(t).(*rsock.PacketConn)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(40 * time.Second))
	return c
}

func addrPort(c net.PacketConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// exchangePacket sends a datagram and checks that it arrives, from a's address.
func exchangePacket(t *testing.T, a, b *rsock.PacketConn, data []byte) {
	t.Helper()
	if n, err := a.WriteTo(data, b.LocalAddr()); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	buf := make([]byte, 4096)
	n, from, err := b.ReadFrom(buf)
	if err != nil || !bytes.Equal(buf[:n], data) || from.String() != a.LocalAddr().String() {
		t.Fatalf("%d bytes from %v, %v", n, from, err)
	}
}

// sentPackets returns how many packets the device has sent.
func sentPackets(t *testing.T) int {
	t.Helper()
	file := map[string]string{labtest.RXE: "hw_counters/sent_pkts", labtest.MLX5: "counters/port_xmit_packets"}[labtest.RoCE]
	text := labtest.Must(os.ReadFile("/sys/class/infiniband/" + labtest.RoCE + "/ports/1/" + file))(t)
	return labtest.Must(strconv.Atoi(strings.TrimSpace(string(text))))(t)
}

// TestPacketConn sends datagrams of all sizes both ways, more than the queues take.
func TestPacketConn(t *testing.T) {
	labtest.RequireKernel(t)
	for _, host := range []string{labtest.Addr, labtest.Addr6Of(labtest.RoCE)} {
		t.Run(host, func(t *testing.T) {
			lc := rsock.ListenConfig{Options: rsock.Options{RecvQueue: 16, SendQueue: 16}}
			at := net.JoinHostPort(host, "0")
			a, b := listenPacket(t, at, lc), listenPacket(t, at, lc)
			most := labtest.Must(a.MaxPayload(addrPort(b)))(t)
			udp := 2032 // bytes of a datagram by UDP
			if labtest.Addr6Of(labtest.RoCE) == host {
				udp = 2020
			}
			data := randomBytes(udp + 1)
			before := sentPackets(t)
			for i := range 50 {
				exchangePacket(t, a, b, data[:i*most/49])
				exchangePacket(t, b, a, data[most-i*most/49:most])
			}
			if sent := sentPackets(t) - before; sent < 90 { // the others by UDP
				t.Errorf("only %d datagrams went by RDMA", sent)
			}
			if n, err := a.WriteTo(data, b.LocalAddr()); n != 0 || !errors.Is(err, syscall.EMSGSIZE) || !errors.Is(err, verbs.ErrMessageTooLong) {
				t.Error(n, err)
			}
			exchangePacket(t, a, b, data[:min(most+1, udp)])
			exchangePacket(t, b, a, data[:udp])
			exchangePacket(t, a, b, nil)
			if _, err := a.WriteTo(data[:10], b.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if n, _, err := b.ReadFrom(make([]byte, 4)); n != 4 || err != nil {
				t.Error(n, err)
			}
		})
	}
}

// TestPacketConnWildcard sends between conns at all addresses.
func TestPacketConnWildcard(t *testing.T) {
	labtest.RequireKernel(t)
	a, b := listenPacket(t, ":0", rsock.ListenConfig{}), listenPacket(t, ":0", rsock.ListenConfig{})
	buf := make([]byte, 100)
	for i := range 10 {
		host := netip.MustParseAddr([]string{labtest.Addr, labtest.Addr6Of(labtest.RoCE)}[i%2])
		to := netip.AddrPortFrom(host, addrPort(b).Port())
		if _, err := a.WriteToAddrPort([]byte("hello"), to); err != nil {
			t.Fatal(err)
		}
		n, from, err := b.ReadFromAddrPort(buf)
		if err != nil || string(buf[:n]) != "hello" || from != netip.AddrPortFrom(host, addrPort(a).Port()) {
			t.Fatalf("%q from %v, %v", buf[:n], from, err)
		}
	}
}

// TestPacketConnManyWriters sends from several goroutines at a time. Datagrams may get lost,
// but none may be damaged.
func TestPacketConnManyWriters(t *testing.T) {
	labtest.RequireKernel(t)
	at := net.JoinHostPort(labtest.Addr, "0")
	a, b := listenPacket(t, at, rsock.ListenConfig{}), listenPacket(t, at, rsock.ListenConfig{})
	exchangePacket(t, a, b, []byte("first"))
	const writers, each = 4, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if _, err := a.WriteTo(bytes.Repeat([]byte{byte('a' + w)}, 500), b.LocalAddr()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	buf := make([]byte, 1000)
	got := 0
	for ; got < writers*each; got++ {
		b.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := 0, error(nil)
		if n, _, err = b.ReadFrom(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil || n != 500 || !bytes.Equal(buf[:n], bytes.Repeat(buf[:1], n)) {
			t.Fatal(n, err)
		}
	}
	wg.Wait()
	if got < 384 { // what the queue takes
		t.Errorf("%d datagrams arrived", got)
	}
}

// TestPacketConnPeerRestarts checks that datagrams reach a peer that was opened again.
func TestPacketConnPeerRestarts(t *testing.T) {
	labtest.RequireKernel(t)
	at := net.JoinHostPort(labtest.Addr, "0")
	a, b := listenPacket(t, at, rsock.ListenConfig{}), listenPacket(t, at, rsock.ListenConfig{})
	for range 3 {
		exchangePacket(t, a, b, []byte("hello"))
	}
	addr := b.LocalAddr()
	b.Close()
	again := listenPacket(t, addr.String(), rsock.ListenConfig{})
	arrived := make(chan error)
	go func() {
		_, _, err := again.ReadFrom(make([]byte, 10))
		arrived <- err
	}()
	for {
		if _, err := a.WriteTo([]byte("still here"), addr); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-arrived:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestPacketConnEnds checks deadlines, Close, and what is left.
func TestPacketConnEnds(t *testing.T) {
	labtest.RequireKernel(t)
	at := net.JoinHostPort(labtest.Addr, "0")
	before := labtest.SettledInventory(t)
	a := labtest.Must(rsock.ListenPacket("rdma", at))(t).(*rsock.PacketConn)
	read := func() error { _, _, err := a.ReadFrom(make([]byte, 10)); return err }
	a.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	want(t, "deadline", read(), os.ErrDeadlineExceeded)
	want(t, "past deadline", read(), os.ErrDeadlineExceeded)
	a.SetReadDeadline(time.Time{})
	for _, end := range []struct {
		call func()
		want error
	}{
		{func() { a.SetDeadline(time.Now().Add(-time.Second)) }, os.ErrDeadlineExceeded},
		{func() { a.Close() }, net.ErrClosed},
	} {
		err := make(chan error)
		a.SetReadDeadline(time.Now().Add(time.Hour))
		go func() { err <- read() }()
		labtest.UntilBlocked(t, 1, "(*PacketConn).ReadFrom")
		end.call()
		want(t, "call that waited", <-err, end.want)
	}
	_, err := a.WriteTo([]byte("x"), a.LocalAddr())
	want(t, "write", err, net.ErrClosed)
	want(t, "read", read(), net.ErrClosed)
	want(t, "close", a.Close(), net.ErrClosed)
	want(t, "deadline", a.SetDeadline(time.Time{}), net.ErrClosed)
	labtest.CheckLeaks(t, before)
}

// TestPacketConnRefuses checks the errors of addresses that cannot be used.
func TestPacketConnRefuses(t *testing.T) {
	labtest.RequireKernel(t)
	for addr, target := range map[string]error{
		labtest.AddrOf(labtest.SIW) + ":0": errors.ErrUnsupported,
		"127.0.0.1:0":                      verbs.ErrNoRDMA,
		"192.0.2.1:0":                      syscall.EADDRNOTAVAIL,
	} {
		_, err := rsock.ListenPacket("rdma", addr)
		want(t, addr, err, target)
	}
	_, err := (&rsock.ListenConfig{Fallback: rsock.FallbackMissing}).ListenPacket(context.Background(), "rdma", ":0")
	want(t, "fallback", err, errors.ErrUnsupported)
	a := listenPacket(t, net.JoinHostPort(labtest.Addr, "0"), rsock.ListenConfig{})
	for addr, target := range map[string]error{
		"192.0.2.1:1": syscall.ETIMEDOUT, // of the address resolution
		"0.0.0.0:1":   syscall.EINVAL,
		"10.9.0.1:0":  syscall.EINVAL,
	} {
		_, err := a.WriteToAddrPort([]byte("x"), netip.MustParseAddrPort(addr))
		want(t, addr, err, target)
	}
	addrErr := new(net.AddrError)
	if _, err := a.WriteTo(nil, &net.UnixAddr{}); !errors.As(err, &addrErr) {
		t.Error(err)
	}
}

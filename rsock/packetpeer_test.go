package rsock

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
)

// newPacketConn opens a PacketConn on a device of its own, with packets of 1024 bytes as on most
// Ethernets.
func newPacketConn(t *testing.T, opt Options) (*PacketConn, *soft.Device) {
	t.Helper()
	addr := netip.MustParseAddr("127.0.0.21")
	d, err := soft.New(soft.Options{Host: t.Name(), Addrs: []netip.Addr{addr}, Port: 14794, MTU: 3})
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip(err) // not all systems have all of 127.0.0.0/8
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	transport := &cm.Transport{Host: d}
	t.Cleanup(func() { transport.Close() })
	c, err := (&ListenConfig{Transport: transport, Options: opt}).ListenPacket(t.Context(), "rdma", addr.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*PacketConn), d
}

func skipInLab(t *testing.T) {
	if testing.Short() && os.Getenv("VERBS_LAB") != "" { // labtest is for Linux only
		t.Skip("has run outside of the lab")
	}
}

// numbered returns different addresses of loopback interfaces.
func numbered(i int) netip.AddrPort {
	b := [4]byte{127, 1}
	binary.BigEndian.PutUint16(b[2:], uint16(1+i))
	return netip.AddrPortFrom(netip.AddrFrom4(b), 9)
}

// age makes all peers idle.
func (c *PacketConn) age() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inUse = time.Time{}
	for _, p := range c.peers {
		p.used = p.used.Add(-2 * inUse)
	}
}

// TestPacketPeers writes to more addresses, and receives from more, than a PacketConn knows: peers
// and address handles are limited, and new peers take the place of idle ones.
func TestPacketPeers(t *testing.T) {
	skipInLab(t)
	c, d := newPacketConn(t, Options{})
	limited := func() {
		t.Helper()
		c.mu.Lock()
		peers := len(c.peers)
		c.mu.Unlock()
		if ahs := d.Resources()["ah"]; peers > maxPeers || ahs > maxPeers || ahs < maxPeers/2 {
			t.Errorf("%d peers with %d address handles; at most %d", peers, ahs, maxPeers)
		}
	}
	failed := 0
	for i := range maxPeers + 500 {
		if i == maxPeers { // these are in use
			c.mu.Lock()
			for _, p := range c.peers {
				p.used = time.Now().Add(time.Minute)
			}
			c.mu.Unlock()
		}
		if _, err := c.WriteToAddrPort([]byte("x"), numbered(i)); errors.Is(err, syscall.ENOBUFS) {
			failed++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if failed != 500 {
		t.Errorf("%d of 500 peers too many were refused", failed)
	}
	limited()
	c.mu.Lock()
	for _, p := range c.peers {
		p.used = time.Now()
	}
	c.mu.Unlock()
	c.age()
	for i := range 500 {
		if _, err := c.WriteToAddrPort([]byte("x"), numbered(5000+i)); err != nil {
			t.Fatal(err)
		}
	}
	limited()
	c.age()
	sender := numbered(9999) // of a datagram
	labtest.Until(t, "a new sender to be known", func() bool {
		c.learn(sender, 17, true)
		c.mu.Lock()
		defer c.mu.Unlock()
		p := c.peers[sender]
		return p != nil && p.isResolved()
	})
	limited()
}

// TestPacketPeerInUse writes to more peers than a PacketConn knows while another datagram waits for
// room in the send queue, and again when it is in the queue: the address handle of its peer, which
// is idle otherwise, stays.
func TestPacketPeerInUse(t *testing.T) {
	skipInLab(t)
	c, _ := newPacketConn(t, Options{SendQueue: 16})
	to := netip.AddrPortFrom(c.local.Addr(), 9)
	write := func(to netip.AddrPort) {
		t.Helper()
		if _, err := c.WriteToAddrPort([]byte("x"), to); err != nil {
			t.Error(to, err)
		}
	}
	next := 0
	crowd := func() { // takes the place of all peers that are idle
		c.age()
		for range maxPeers - 1 {
			write(numbered(next))
			next++
		}
	}
	write(to)
	c.mu.Lock()
	p := c.peers[to]
	p.qpn, p.heard, p.used = 17, time.Now(), time.Time{}
	c.mu.Unlock()
	known := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.peers[to] == p
	}
	q := p.queue
	q.sending.Lock() // as another WriteTo, which waits for room
	result := make(chan error, 1)
	go func() {
		_, err := c.WriteToAddrPort([]byte("x"), to)
		result <- err
	}()
	labtest.Until(t, "the call to begin", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !p.used.IsZero()
	})
	crowd()
	crowd()
	if !known() {
		t.Error("the peer of a call is forgotten")
	}
	q.sending.Unlock()
	if err := <-result; err != nil {
		t.Error(err)
	}
	crowd()
	crowd() // which finds the request complete
	if known() {
		t.Error("an idle peer is not forgotten")
	}
	q.sending.Lock()
	defer q.sending.Unlock()
	for len(q.free) < 16 { // until all have completed
		var wcs [1]verbs.WC
		n, err := q.sendCQ.PollWait(t.Context(), wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if err := wcs[0].Err(); err != nil {
			t.Fatal(err)
		}
		q.completed(wcs[:n])
	}
}

// TestPacketForged tells a PacketConn another number of its peer's QP, as a UDP datagram with a
// forged source does: it stays with the peer's address, and asks the peer again when it has heard
// nothing of that QP for a while.
func TestPacketForged(t *testing.T) {
	c, _ := newPacketConn(t, Options{})
	conn, err := (&ListenConfig{Transport: c.transport}).ListenPacket(t.Context(), "rdma", c.local.Addr().String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := conn.(*PacketConn)
	b.SetWriteDeadline(time.Unix(1, 0)) // which is not for its answers
	right := b.queues[b.local.Addr()].qp.Num()
	peer := func() (qpn uint32, ah *uverbs.AH) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.peers[b.local].qpn, c.peers[b.local].ah
	}
	write := func() {
		t.Helper()
		if _, err := c.WriteToAddrPort([]byte("x"), b.local); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.ReadFrom(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		labtest.Until(t, "the peer's QP to be known", func() bool {
			qpn, _ := peer()
			return qpn == right
		})
	}
	write()
	_, before := peer()
	c.learn(b.local, 99, false)
	if qpn, ah := peer(); qpn != 99 || ah != before {
		t.Errorf("after a forged datagram: QP %d, another handle: %t", qpn, ah != before)
	}
	c.mu.Lock()
	c.peers[b.local].heard = time.Now().Add(-silence - time.Second)
	c.mu.Unlock()
	write()
}

// TestPacketUDP sends datagrams of sizes that go by UDP alone, as they exceed the packets of the
// device.
func TestPacketUDP(t *testing.T) {
	c, _ := newPacketConn(t, Options{})
	if most, err := c.MaxPayload(c.local); err != nil || most >= 1200 {
		t.Fatal(most, err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	for _, size := range []int{1, 1200, 2032} {
		if _, err := c.WriteToAddrPort(make([]byte, size), c.local); err != nil {
			t.Fatal(size, err)
		}
		if n, from, err := c.ReadFromAddrPort(make([]byte, 4096)); n != size || err != nil || from != c.local {
			t.Errorf("%d bytes of %d from %v, %v", n, size, from, err)
		}
	}
	if _, err := c.WriteToAddrPort(make([]byte, 2033), c.local); !errors.Is(err, syscall.EMSGSIZE) {
		t.Error(err)
	}
	c.SetReadDeadline(time.Now())
	_, _, err := c.ReadFrom(make([]byte, 1))
	if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
		t.Errorf("a read whose deadline has passed: %v", err)
	}
}

// TestPacketWriteDeadline waits for room in the send queue of a device that completes nothing.
func TestPacketWriteDeadline(t *testing.T) {
	c, _ := newPacketConn(t, Options{SendQueue: 16})
	to := netip.AddrPortFrom(c.local.Addr(), 9)
	if _, err := c.WriteToAddrPort([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	p := c.peers[to]
	p.qpn, p.heard = 17, time.Now()
	c.mu.Unlock()
	p.queue.sending.Lock()
	free := p.queue.free
	p.queue.free = nil
	p.queue.sending.Unlock()
	result := make(chan error, 1)
	go func() {
		_, err := c.WriteToAddrPort([]byte("x"), to)
		result <- err
	}()
	labtest.Until(t, "the call to wait", func() bool {
		if p.queue.sending.TryLock() {
			p.queue.sending.Unlock()
			return false
		}
		return true
	})
	c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	select {
	case err := <-result:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the write deadline is not honoured")
	}
	c.SetWriteDeadline(time.Time{})
	p.queue.sending.Lock()
	p.queue.free = free
	p.queue.sending.Unlock()
	if _, err := c.WriteToAddrPort([]byte("x"), to); err != nil {
		t.Errorf("after a write that ran into its deadline: %v", err)
	}
}

// countingContext counts functions that wait for its end.
type countingContext struct {
	context.Context
	waiting int
}

func (c *countingContext) Value(any) any { return nil } // or package context looks behind it

func (c *countingContext) AfterFunc(f func()) func() bool {
	c.waiting++
	stop := context.AfterFunc(c.Context, f)
	return func() bool {
		c.waiting--
		return stop()
	}
}

// TestPacketQueueFails makes queues that cannot be opened: nothing of them remains.
func TestPacketQueueFails(t *testing.T) {
	c, d := newPacketConn(t, Options{})
	path, err := (&cm.Dialer{Transport: c.transport}).Lookup(t.Context(), d.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	path.Port = 9 // there is none
	path.Local = netip.MustParseAddr("127.9.9.9")
	ctx := &countingContext{Context: c.ctx}
	c.ctx = ctx
	for range 10 {
		if _, err := c.queue(&path); err == nil {
			t.Fatal("made a queue on a port that does not exist")
		}
	}
	if ctx.waiting != 0 {
		t.Errorf("%d contexts remain", ctx.waiting)
	}
}

// TestPacketHear notes when a known peer was heard, and not what others send in its name.
func TestPacketHear(t *testing.T) {
	c, _ := newPacketConn(t, Options{})
	to := netip.AddrPortFrom(c.local.Addr(), 9)
	if _, err := c.WriteToAddrPort([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, test := range []struct {
		from netip.AddrPort
		qpn  uint32
		want bool
	}{{to, 18, false}, {netip.AddrPortFrom(to.Addr(), 10), 17, false}, {to, 17, true}} {
		c.mu.Lock()
		p := c.peers[to]
		p.qpn, p.heard = 17, old
		c.mu.Unlock()
		c.hear(test.from, test.qpn)
		c.mu.Lock()
		if p.heard.After(old) != test.want {
			t.Errorf("QP %d of %v: heard at %v", test.qpn, test.from, p.heard)
		}
		c.mu.Unlock()
	}
}

// TestPacketPeerFree counts the calls that use a peer: none does when they have returned, so that it can be forgotten.
func TestPacketPeerFree(t *testing.T) {
	c, _ := newPacketConn(t, Options{})
	to := netip.AddrPortFrom(c.local.Addr(), 9)
	if n, err := c.MaxPayload(to); n <= 0 || err != nil {
		t.Errorf("payload of %d bytes: %v", n, err)
	}
	if _, err := c.WriteToAddrPort([]byte("x"), to); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.peers[to].users.Load(); n != 0 {
		t.Errorf("%d calls use the peer", n)
	}
}

package rsock

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const (
	// silence is the time after which the QP's number is sent to a silent peer again.
	silence = 10 * time.Second
	// maxPeers is how many peers a PacketConn knows, each with an address handle. A new one takes
	// the place of the one that was unused for the longest time.
	maxPeers = 2048
	// inUse is how long a peer is kept after a use: strangers do not displace active peers.
	inUse = time.Second
	// maxResolves is how many senders are resolved at a time.
	maxResolves = 64
)

// packetPeer is an address that datagrams go to or come from.
type packetPeer struct {
	addr     netip.AddrPort
	resolved chan struct{} // closed when the fields up to err are set
	queue    *packetQueue  // that leads to it
	ah       *uverbs.AH
	err      error
	// users counts the calls that have the peer, and the requests in flight: they name its handle
	// by a number that another peer's handle may have later. It rises only with PacketConn.mu held,
	// or above 0.
	users atomic.Int32

	// Guarded by PacketConn.mu:
	qpn   uint32    // of its QP; 0 if unknown
	heard time.Time // when something came from it, or it was last asked for its QP
	used  time.Time // when something was sent to it, or came from it by UDP
}

// peer returns the peer with an address, and counts the caller as its user. If it is new, its route
// is resolved in the background.
func (c *PacketConn) peer(addr netip.AddrPort) (*packetPeer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	p := c.peers[addr]
	if p == nil {
		if p = c.addPeer(addr); p == nil {
			return nil, fmt.Errorf("too many peers: %d others were in use in the last %v: %w", maxPeers, inUse, syscall.ENOBUFS)
		}
		c.wg.Go(func() { c.resolve(p) })
	}
	p.users.Add(1)
	p.used = time.Now()
	return p, nil
}

// addPeer adds a peer, which the caller must resolve. It returns nil if there is no room, as all
// others are in use. The caller holds mu.
func (c *PacketConn) addPeer(addr netip.AddrPort) *packetPeer {
	if len(c.peers) >= maxPeers && !c.forgetIdle() {
		return nil
	}
	p := &packetPeer{addr: addr, resolved: make(chan struct{})}
	c.peers[addr] = p
	return p
}

// forgetIdle forgets an eighth of the peers at most: those without users that were unused for the
// longest time. It reports false if all are in use. The caller holds mu.
func (c *PacketConn) forgetIdle() bool {
	now := time.Now()
	if now.Sub(c.inUse) < inUse/8 { // senders could cause many searches that find none
		return false
	}
	for _, q := range c.queues {
		if q.sending.TryLock() { // or a call that sends is about to do it
			q.reap()
			q.sending.Unlock()
		}
	}
	var idle []*packetPeer
	for _, p := range c.peers {
		if now.Sub(p.used) > inUse && p.users.Load() == 0 && p.isResolved() {
			idle = append(idle, p)
		}
	}
	if len(idle) == 0 {
		c.inUse = now
		return false
	}
	slices.SortFunc(idle, func(a, b *packetPeer) int { return a.used.Compare(b.used) })
	for _, p := range idle[:min(len(idle), maxPeers/8)] {
		delete(c.peers, p.addr)
		p.ah.Close()
	}
	return true
}

func (p *packetPeer) isResolved() bool {
	select {
	case <-p.resolved:
		return true
	default:
		return false
	}
}

// resolve finds the queue and the address handle for a peer. A peer that cannot be resolved is
// forgotten, so that the next call tries again.
func (c *PacketConn) resolve(p *packetPeer) {
	done := func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.err = err; err != nil {
			delete(c.peers, p.addr)
		}
		close(p.resolved)
	}
	d := cm.Dialer{Transport: c.transport}
	if a := c.local.Addr(); !a.IsUnspecified() {
		d.LocalAddr = netip.AddrPortFrom(a, 0)
	}
	path, err := d.Lookup(c.ctx, p.addr.Addr().String())
	if err == nil {
		p.queue, err = c.queue(&path)
	}
	if err != nil {
		done(err)
		return
	}
	q := p.queue
	q.using.RLock() // also for done: when the queue is closed, all its peers are resolved
	defer q.using.RUnlock()
	if q.closed {
		done(errQueueClosed)
		return
	}
	av, err := path.AddressVector(q.dev)
	if err == nil {
		p.ah, err = q.pd.CreateAH(av)
	}
	done(err)
}

// destination returns the number of a peer's QP, or 0 if the next datagram must go by UDP.
func (c *PacketConn) destination(p *packetPeer) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	// A peer that has started again has another QP, and silently drops messages for the old one. So
	// one datagram goes by UDP: a new process at the same port answers with its QP.
	if p.qpn != 0 && now.Sub(p.heard) > silence {
		p.heard = now
		return 0
	}
	return p.qpn
}

// udpMessage returns a message by UDP to a resolved peer.
func (p *packetPeer) udpMessage(op byte, data []byte) []byte {
	b := appendUDPHeader(make([]byte, 0, udpHeaderSize+len(data)), p.queue.local, op, p.queue.qp.Num())
	return append(b, data...)
}

func (c *PacketConn) sendUDP(p *packetPeer, data []byte) error {
	_, err := c.udp.WriteToUDPAddrPort(p.udpMessage(udpData, data), p.addr)
	return err
}

// serveUDP receives UDP datagrams until the socket is closed.
func (c *PacketConn) serveUDP() {
	buf := make([]byte, maxMessage)
	for {
		n, from, err := c.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(time.Millisecond)
			continue
		}
		c.receiveUDP(unmap(from), buf[:n])
	}
}

func (c *PacketConn) receiveUDP(from netip.AddrPort, b []byte) {
	op, qpn, data, ok := parseUDPHeader(b, from.Addr())
	if !ok || qpn == 0 || op != udpData && op != udpCtrl {
		c.log.Debug("UDP datagram of another protocol", "from", from, "bytes", len(b))
		return
	}
	if p := c.learn(from, qpn, op == udpData); p != nil {
		c.answer(p)
	}
	if op == udpData {
		select {
		case c.incoming <- packet{from: from, data: bytes.Clone(data)}:
		default: // the queue is full
		}
	}
}

// learn takes the number of a peer's QP. It returns the peer if it has asked for that of the
// PacketConn, and can be answered now. It must not wait: it runs for any datagram.
func (c *PacketConn) learn(from netip.AddrPort, qpn uint32, asked bool) (answer *packetPeer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[from]
	if p == nil {
		if c.ctx.Err() != nil || !asked {
			return nil
		}
		select {
		case c.resolves <- struct{}{}:
		default:
			return nil
		}
		if p = c.addPeer(from); p == nil {
			<-c.resolves
			return nil
		}
		c.wg.Go(func() {
			c.resolve(p)
			<-c.resolves
			if p.err == nil {
				c.answer(p)
			} else {
				c.log.Debug("sender cannot be resolved", "from", from, "err", p.err)
			}
		})
	} else if asked && p.isResolved() {
		answer = p
	}
	p.qpn, p.heard, p.used = qpn, time.Now(), time.Now()
	return answer
}

// answer sends the QP's number to a resolved peer. If the answer is lost, the peer asks again.
func (c *PacketConn) answer(p *packetPeer) {
	c.answers.WriteTo(p.udpMessage(udpCtrl, nil), net.UDPAddrFromAddrPort(p.addr))
}

func (c *PacketConn) hear(from netip.AddrPort, qpn uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[from]; p != nil && p.qpn == qpn {
		p.heard = time.Now()
	}
}

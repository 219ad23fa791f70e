package rsock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// PacketConn sends and receives datagrams over RDMA's unreliable datagrams. It is a
// [net.PacketConn], and a datagram rsocket of C, a socket(SOCK_DGRAM) with rsocket(7), can be
// its peer. As with UDP, datagrams may get lost, be repeated and overtake each other, nothing
// proves who sent them, and they are dropped if they are not read.
//
//	first datagram to a peer ── UDP: DATA, own QP number ───► UDP port ──► ReadFrom
//	                         ◄─ UDP: CTRL, the peer's QP ────    │
//	later ones               ══ SEND from QP to QP ═════════► UD QP ─────► ReadFrom
//
// By a UDP socket at the same address both sides learn the numbers of their queue pairs. It
// carries the datagrams until the answer has come, and one in 10 s if nothing comes from the
// peer, which may have started again. There is a queue pair for each local address in use.
//
// All methods may be called by several goroutines. The caller must close it. Two goroutines
// and one per queue pair belong to it, which end with Close.
type PacketConn struct {
	udp       *net.UDPConn
	answers   net.PacketConn // the same socket, on which the program sets no deadline
	local     netip.AddrPort // of udp
	opt       Options
	transport *cm.Transport
	log       *slog.Logger
	ctx       context.Context // ends with the PacketConn
	cancel    context.CancelCauseFunc
	wg        sync.WaitGroup
	incoming  chan packet
	read      deadline
	write     deadline
	resolves  chan struct{} // a token for each peer that is resolved because it sent something
	creating  sync.Mutex    // held while a queue is made

	mu     sync.Mutex                  // also held to end ctx
	queues map[netip.Addr]*packetQueue // by local address
	peers  map[netip.AddrPort]*packetPeer
	inUse  time.Time // when all peers were last found in use
}

type packet struct {
	from  netip.AddrPort
	data  []byte
	queue *packetQueue // the owner of the slot with the data, or nil
	slot  int
}

// packetQueues is the default size of the queues. Nothing makes a sender of datagrams wait: those
// beyond the receives are lost.
const packetQueues = 384

// ListenPacket opens a [PacketConn] with the zero [ListenConfig].
func ListenPacket(network, addr string) (net.PacketConn, error) {
	return new(ListenConfig).ListenPacket(context.Background(), network, addr)
}

// ListenPacket opens a [PacketConn] at addr: "10.9.0.1:7471", or ":7471" for all addresses; port 0
// means a free one. For network see [Dialer.DialContext]. Of the options, RecvQueue and SendQueue
// apply: the numbers of datagrams of 2 KiB that each queue pair has memory for (zero means 384).
// Fallback must be [FallbackNone]. iWARP has no datagrams: the error matches
// [errors.ErrUnsupported], and [verbs.ErrNoRDMA] if RDMA is missing.
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, addr string) (net.PacketConn, error) {
	c, err := lc.listenPacket(ctx, network, addr)
	if err != nil {
		if _, ok := errors.AsType[*net.OpError](err); !ok {
			err = opError("listen", nil, nil, err)
		}
		return nil, err
	}
	return c, nil
}

func (lc *ListenConfig) listenPacket(ctx context.Context, network, addr string) (*PacketConn, error) {
	opt := lc.Options
	opt.SendQueue, opt.RecvQueue = cmp.Or(opt.SendQueue, packetQueues), cmp.Or(opt.RecvQueue, packetQueues)
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	if lc.Fallback != FallbackNone {
		return nil, fmt.Errorf("datagrams have no fallback: %w", errors.ErrUnsupported)
	}
	addrs, err := lookup(ctx, nil, network, addr)
	if err != nil {
		return nil, err
	}
	c := &PacketConn{
		opt: opt, transport: lc.Transport, log: logger(lc.Logger), incoming: make(chan packet, opt.RecvQueue), resolves: make(chan struct{}, maxResolves),
		queues: map[netip.Addr]*packetQueue{}, peers: map[netip.AddrPort]*packetPeer{},
	}
	if devs, err := uverbs.Devices(); err != nil || len(devs) == 0 {
		return nil, cmp.Or(err, error(verbs.ErrNoDevice))
	}
	at := host.ListenAddr(addrs)
	local, udpNetwork := net.UDPAddrFromAddrPort(at), "udp4"
	switch {
	case at.Addr().Is6():
		udpNetwork = "udp6"
	case strings.HasPrefix(addr, ":") && !strings.HasSuffix(network, "4"):
		udpNetwork, local.IP = "udp", nil // both families
	}
	if c.udp, err = net.ListenUDP(udpNetwork, local); err != nil {
		return nil, err
	}
	if c.answers, err = again(c.udp); err != nil {
		c.udp.Close()
		return nil, err
	}
	c.local = unmap(c.udp.LocalAddr().(*net.UDPAddr).AddrPort())
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.read.init(c.ctx)
	c.write.init(c.ctx)
	if a := c.local.Addr(); !a.IsUnspecified() { // peers may send to the queue pair before the first WriteTo
		path, err := (&cm.Dialer{Transport: c.transport}).Lookup(ctx, a.String())
		if err == nil {
			path.Local = a
			_, err = c.queue(&path)
		}
		if err != nil {
			c.Close()
			return nil, opError("listen", nil, c.LocalAddr(), err)
		}
	}
	c.wg.Go(c.serveUDP)
	return c, nil
}

// again returns the socket once more, with deadlines of its own. On Windows it returns the same:
// there, File makes the first one deaf to deadlines and Close.
func again(udp *net.UDPConn) (net.PacketConn, error) {
	if runtime.GOOS == "windows" {
		return udp, nil
	}
	f, err := udp.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FilePacketConn(f)
}

// unmap returns an address in the form that the maps of a PacketConn use.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// ReadFrom waits for a datagram and copies it to b; what does not fit is lost. The address is
// a [*net.UDPAddr].
func (c *PacketConn) ReadFrom(b []byte) (n int, from net.Addr, err error) {
	n, addr, err := c.ReadFromAddrPort(b)
	if err != nil {
		return n, nil, err
	}
	return n, net.UDPAddrFromAddrPort(addr), nil
}

// ReadFromAddrPort is [PacketConn.ReadFrom] without allocations.
func (c *PacketConn) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	for {
		p, err := wait(&c.read, c.incoming)
		if err != nil {
			return 0, from, c.wrap("read", nil, err)
		}
		if p.queue == nil {
			return copy(b, p.data), p.from, nil
		}
		if n, ok := p.queue.take(p, b); ok {
			return n, p.from, nil
		}
	}
}

// WriteTo sends a datagram, and returns when the device has it. The address is a [*net.UDPAddr], or
// another type with its method AddrPort. The first datagram to a peer waits until its route is
// resolved; if no device leads to it, the error matches [verbs.ErrNoRDMA]. A datagram of more than
// [PacketConn.MaxPayload] bytes goes by the UDP socket, as QUIC's first ones do if the RDMA MTU is
// 1024; one of more than 2032 (2020 over IPv6) fails with EMSGSIZE, as C's peers read no more. Of
// 2048 peers, a new one takes the place of the one that was idle for the longest time; it fails
// with ENOBUFS if all were in use in the last second, or have datagrams that are not yet sent.
func (c *PacketConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	if a, ok := addr.(interface{ AddrPort() netip.AddrPort }); ok {
		return c.WriteToAddrPort(b, a.AddrPort())
	}
	return 0, c.wrap("write", addr, &net.AddrError{Err: fmt.Sprintf("address of type %T", addr), Addr: fmt.Sprint(addr)})
}

// WriteToAddrPort is [PacketConn.WriteTo] without allocations.
func (c *PacketConn) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	if err := c.writeTo(b, unmap(addr)); err != nil {
		return 0, c.wrap("write", net.UDPAddrFromAddrPort(addr), err)
	}
	return len(b), nil
}

func (c *PacketConn) writeTo(b []byte, addr netip.AddrPort) error {
	if !addr.IsValid() || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() || addr.Port() == 0 {
		return fmt.Errorf("address: %w", syscall.EINVAL)
	}
	return c.withPeer(addr, func(p *packetPeer) error { return c.sendTo(p, b) })
}

// withPeer calls f with a resolved peer, again if its queue has been closed meanwhile.
func (c *PacketConn) withPeer(addr netip.AddrPort, f func(*packetPeer) error) error {
	for {
		p, err := c.peer(addr)
		if err != nil {
			return err
		}
		if _, err = wait(&c.write, p.resolved); err == nil {
			err = p.err
		}
		if err == nil {
			err = f(p)
		}
		p.users.Add(-1)
		if err != errQueueClosed {
			return err
		}
		if _, err := wait(&c.write, p.queue.done); err != nil {
			return err
		}
	}
}

func (c *PacketConn) sendTo(p *packetPeer, b []byte) error {
	q := p.queue
	switch {
	case len(b) > q.maxUDP:
		return fmt.Errorf("%d bytes, at most %d: %w: %w", len(b), q.maxUDP, syscall.EMSGSIZE, verbs.ErrMessageTooLong)
	case len(b) > q.maxPayload:
		return c.sendUDP(p, b)
	}
	if qpn := c.destination(p); qpn != 0 {
		return q.send(b, p, qpn)
	}
	return c.sendUDP(p, b)
}

// MaxPayload returns how many bytes a datagram to a peer can have to go by RDMA, in one packet of
// its device: at most 2032 (2020 over IPv6). It waits as WriteTo does.
func (c *PacketConn) MaxPayload(addr netip.AddrPort) (n int, err error) {
	err = c.withPeer(unmap(addr), func(p *packetPeer) error {
		n = p.queue.maxPayload
		return nil
	})
	if err != nil {
		return 0, c.wrap("route", net.UDPAddrFromAddrPort(addr), err)
	}
	return n, nil
}

// wrap returns an error as a [net.OpError], with the errors of package net for deadlines and
// after Close.
func (c *PacketConn) wrap(op string, addr net.Addr, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded
	}
	return opError(op, c.LocalAddr(), addr, err)
}

// SetReadBuffer and SetWriteBuffer set the buffers of the UDP socket; [Options] sets the buffers of
// the queue pairs.
func (c *PacketConn) SetReadBuffer(bytes int) error  { return c.udp.SetReadBuffer(bytes) }
func (c *PacketConn) SetWriteBuffer(bytes int) error { return c.udp.SetWriteBuffer(bytes) }

// LocalAddr returns the address, a [*net.UDPAddr]. It is the wildcard if that was given.
func (c *PacketConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.local) }

// SetDeadline sets the time at which running and later calls fail with
// [os.ErrDeadlineExceeded]. The zero value means never.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return cmp.Or(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline is SetDeadline for ReadFrom, SetWriteDeadline for WriteTo.
func (c *PacketConn) SetReadDeadline(t time.Time) error  { return c.setDeadline(&c.read, t) }
func (c *PacketConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.write, t) }

func (c *PacketConn) setDeadline(d *deadline, t time.Time) error {
	if c.ctx.Err() != nil {
		return c.wrap("set", nil, net.ErrClosed)
	}
	d.set(t)
	if d == &c.write && c.answers != net.PacketConn(c.udp) {
		return c.udp.SetWriteDeadline(t)
	}
	return nil
}

// Close ends running calls, which fail with [net.ErrClosed], and releases everything. A second
// Close fails.
func (c *PacketConn) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	c.mu.Lock()
	wasClosed := c.ctx.Err() != nil
	c.cancel(net.ErrClosed)
	c.mu.Unlock()
	if wasClosed {
		return c.wrap("close", nil, net.ErrClosed)
	}
	err := c.udp.Close()
	c.answers.Close()
	c.wg.Wait()
	return err
}

var _ net.PacketConn = (*PacketConn)(nil)

package rsock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
)

// Dialer makes connections. The zero value is usable. A Dialer must not be copied after its
// first use.
type Dialer struct {
	Options
	// Fallback selects when TCP is used instead of RDMA; zero means never.
	Fallback Fallback
	// FallbackDelay bounds the attempt to connect by RDMA if Fallback is
	// [FallbackAlways]. Zero means 3 s, a negative value no limit. If Timeout or the
	// context leave less than twice that time, the attempt gets half of it.
	FallbackDelay time.Duration
	// LocalAddr is the address to connect from. If it is zero, routing chooses one.
	LocalAddr netip.AddrPort
	// Timeout bounds a dial, as its context does. Zero means 30 s for the handshake
	// with each address; if it is negative, only context and kernel limit it.
	Timeout time.Duration
	// TOS is the type of service, or traffic class, of packets: six bits of DSCP and two of ECN.
	// Zero is the system's setting. On RoCE it also applies to the peer's packets. TCP's packets do
	// not have it.
	TOS uint8
	// Resolver resolves names. Nil means net.DefaultResolver.
	Resolver *net.Resolver
	// Transport selects the RDMA devices, see [cm.Transport]. Nil means [cm.DefaultTransport].
	Transport *cm.Transport
	// Logger logs the events of connections: their start and end at level Debug, fallbacks and
	// smaller buffers at Info, peers that break the protocol at Warn. Nil logs nothing.
	Logger *slog.Logger

	dials, failed, tcp atomic.Uint64
	tally              tally
}

// Dial connects with the zero [Dialer].
func Dial(network, addr string) (net.Conn, error) { return new(Dialer).Dial(network, addr) }

// Dial is [Dialer.DialContext] with the background context.
func (d *Dialer) Dial(network, addr string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, addr)
}

// DialContext connects to addr, "host:port". The network is "rdma" or "tcp", which mean the same;
// "4" or "6" appended restricts the addresses of a name to IPv4 or IPv6. The addresses are tried in
// order, each with its share of the time to the deadline. ctx bounds the whole dial; it does not affect the connection once it is up.
//
// The connection is a [*Conn], or a [*net.TCPConn] if Fallback applied. DialContext returns the
// error of the first address that an RDMA device leads to. Without one, the error matches
// [verbs.ErrNoRDMA].
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	d.dials.Add(1)
	c, err := d.dial(ctx, network, addr)
	if err != nil {
		d.failed.Add(1)
	}
	return c, err
}

func (d *Dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.Timeout, fmt.Errorf("no answer within %v: %w", d.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	addrs, err := d.lookup(ctx, network, addr)
	if err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	c, err := d.dialRDMA(ctx, addrs)
	if err == nil {
		return c, nil
	}
	if !d.Fallback.applies(err) || ctx.Err() != nil {
		return nil, err
	}
	logger(d.Logger).Info("falling back to TCP", "addr", addr, "err", err)
	tcp, terr := d.dialTCP(ctx, network, addr)
	if terr != nil {
		return nil, afterFallback(terr, err)
	}
	return tcp, nil
}

// lookup checks the Dialer and finds the addresses to dial.
func (d *Dialer) lookup(ctx context.Context, network, addr string) ([]netip.AddrPort, error) {
	if _, err := d.withDefaults(); err != nil {
		return nil, err
	}
	if err := d.Fallback.check(); err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, d.Resolver, network, addr)
	if err == nil && addrs[0].Addr().IsUnspecified() {
		err = &net.AddrError{Err: "missing host", Addr: addr}
	}
	return addrs, err
}

// dialRDMA connects to the first of the addresses that answers.
func (d *Dialer) dialRDMA(ctx context.Context, addrs []netip.AddrPort) (*Conn, error) {
	if delay := cmp.Or(d.FallbackDelay, defaultFallbackDelay); d.Fallback == FallbackAlways && delay > 0 {
		if end, ok := ctx.Deadline(); ok {
			delay = min(delay, time.Until(end)/2)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, delay)
		defer cancel()
	}
	var source net.Addr
	if d.LocalAddr.IsValid() {
		source = net.TCPAddrFromAddrPort(d.LocalAddr)
	}
	var firstErr error
	for i, a := range addrs {
		share, cancel := host.WithShare(ctx, len(addrs)-i)
		c, err := d.dialAddr(share, a)
		cancel()
		if err == nil {
			return c, nil
		}
		if firstErr == nil || errors.Is(firstErr, verbs.ErrNoRDMA) && !errors.Is(err, verbs.ErrNoRDMA) {
			firstErr = opError("dial", source, net.TCPAddrFromAddrPort(a), err)
		}
	}
	return nil, firstErr
}

// dialTCP connects as package net does.
func (d *Dialer) dialTCP(ctx context.Context, network, addr string) (net.Conn, error) {
	nd := net.Dialer{KeepAlive: d.KeepAlive, Resolver: d.Resolver, Timeout: max(cmp.Or(d.Timeout, defaultTimeout), 0)}
	if d.LocalAddr.IsValid() {
		nd.LocalAddr = net.TCPAddrFromAddrPort(d.LocalAddr)
	}
	c, err := nd.DialContext(ctx, tcpNetwork(network), addr)
	if err == nil {
		d.tcp.Add(1)
		logger(d.Logger).Debug("connected by TCP", "local", c.LocalAddr(), "remote", c.RemoteAddr())
	}
	return c, err
}

// lookup is [host.Lookup] for the name of a network.
func lookup(ctx context.Context, r *net.Resolver, network, addr string) ([]netip.AddrPort, error) {
	ip, err := ipNetwork(network)
	if err != nil {
		return nil, err
	}
	addrs, err := host.Lookup(ctx, r, ip, addr)
	if err == nil {
		err = host.Ended(ctx) // which an address without a name does not look at
	}
	return addrs, err
}

// ipNetwork returns the resolver's name for the addresses of a network.
func ipNetwork(name string) (string, error) {
	for _, prefix := range []string{network, "tcp"} {
		if v, ok := strings.CutPrefix(name, prefix); ok && (v == "" || v == "4" || v == "6") {
			return "ip" + v, nil
		}
	}
	return "", net.UnknownNetworkError(name)
}

func (d *Dialer) dialAddr(ctx context.Context, addr netip.AddrPort) (*Conn, error) {
	c, opt, err := newConn(d.Options, d.Logger)
	if err != nil {
		return nil, err
	}
	if d.Fallback == FallbackAlways {
		opt.Prepare = rejectIWARP
	}
	dialer := cm.Dialer{Options: opt, LocalAddr: d.LocalAddr, ConnectTimeout: d.Timeout, TOS: d.TOS, Transport: d.Transport}
	ep, err := dialer.Dial(ctx, addr.String())
	if err != nil {
		return nil, err
	}
	// The peer's memory is known from here on. A peer without a hello is a server of another
	// protocol.
	peer, err := parseHello(ep.PrivateData)
	if err != nil {
		c.logFailure(err)
		ep.Close()
		return nil, fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	c.connected(peer, nil)
	c.count(&d.tally)
	return c, nil
}

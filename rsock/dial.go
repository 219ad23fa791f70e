package rsock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// Dialer makes connections. The zero value is usable.
type Dialer struct {
	Options
	// LocalAddr is where to connect from; the zero value leaves it to routing.
	LocalAddr netip.AddrPort
	// Timeout bounds a dial, as its context does: zero is 30 s for the handshake
	// with each address, and a negative one leaves it to the context and the kernel.
	Timeout time.Duration
	// Resolver looks names up; nil is net.DefaultResolver.
	Resolver *net.Resolver
}

// Dial connects with the zero [Dialer].
func Dial(network, addr string) (net.Conn, error) { return new(Dialer).Dial(network, addr) }

// Dial is DialContext with no context.
func (d *Dialer) Dial(network, addr string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, addr)
}

// DialContext connects to addr, "host:port", by RDMA whatever the network is
// called: "rdma" or "tcp", or with a 4 or 6 appended, for addresses of that kind
// only. A name's addresses are tried one after the other. ctx bounds all of it,
// and does nothing to a connection that is up. The connection is a [*Conn].
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, addr string) (*Conn, error) {
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	addrs, err := lookup(ctx, d.Resolver, network, addr)
	if err == nil && addrs[0].Addr().IsUnspecified() {
		err = &net.AddrError{Err: "missing host", Addr: addr}
	}
	if err != nil {
		return nil, opError("dial", network, nil, nil, err)
	}
	var source net.Addr
	if d.LocalAddr.IsValid() {
		source = cm.Addr{AddrPort: d.LocalAddr}
	}
	var first error
	for _, a := range addrs {
		c, err := d.attempt(ctx, a)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = opError("dial", network, source, cm.Addr{AddrPort: a}, err)
		}
	}
	return nil, first
}

// lookup finds the addresses that "host:port" means, of which there is at least
// one; no host means all of this machine's.
func lookup(ctx context.Context, r *net.Resolver, network, addr string) ([]netip.AddrPort, error) {
	ip, err := ipNetwork(network)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = net.DefaultResolver
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "0.0.0.0"
		if ip == "ip6" {
			host = "::"
		}
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips, err := r.LookupNetIP(ctx, ip, host)
	if ctx.Err() != nil { // which the resolver's error may not match
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}

// ipNetwork is what the resolver calls a network's addresses.
func ipNetwork(name string) (string, error) {
	for _, prefix := range []string{network, "tcp"} {
		if v, ok := strings.CutPrefix(name, prefix); ok && (v == "" || v == "4" || v == "6") {
			return "ip" + v, nil
		}
	}
	return "", net.UnknownNetworkError(name)
}

func (d *Dialer) attempt(ctx context.Context, addr netip.AddrPort) (*Conn, error) {
	c, opt := newConn(d.Options)
	dialer := cm.Dialer{Options: opt, LocalAddr: d.LocalAddr, ConnectTimeout: d.Timeout}
	ep, err := dialer.Dial(ctx, addr.String())
	if rejected, ok := errors.AsType[*cm.RejectedError](err); ok && bytes.HasPrefix(rejected.PrivateData, noMemory) {
		err = &verbs.Error{Op: "dial", Object: addr.String(), Err: rejected, Hint: "it lacks locked memory: raise its limit, see ulimit -l"}
	}
	if err != nil {
		return nil, err
	}
	peer, err := parseHello(ep.PrivateData)
	if err != nil {
		ep.Close()
		return nil, fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	c.connected(peer, false)
	return c, nil
}

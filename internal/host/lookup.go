package host

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Lookup returns the addresses of "host:port", at least one. The network is "ip", or "ip4" or "ip6"
// for one family. An empty host is the wildcard of IPv4, or with "ip6" of IPv6.
func Lookup(ctx context.Context, r *net.Resolver, network, addr string) ([]netip.AddrPort, error) {
	if r == nil {
		r = net.DefaultResolver
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "0.0.0.0"
		if network == "ip6" {
			host = "::"
		}
	}
	// The resolver drops the zone of an address, and takes [::] for both wildcards, as in a dial.
	a, err := netip.ParseAddr(host)
	if a = a.Unmap(); err == nil && (network == "ip" || a.Is4() == (network == "ip4")) {
		return []netip.AddrPort{netip.AddrPortFrom(a, uint16(port))}, nil
	}
	ips, err := r.LookupNetIP(ctx, network, host)
	if ctx.Err() != nil { // the resolver's error may not match it
		return nil, Ended(ctx)
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

// WithShare returns the context for the first of left addresses of a name that are dialed one after the other: each
// has its share of the time to the deadline of ctx.
func WithShare(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		return context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
	}
	return ctx, func() {}
}

// ListenAddr returns the address of a name to listen at: the first of IPv4 if there is one, as in package net.
func ListenAddr(addrs []netip.AddrPort) netip.AddrPort {
	return addrs[max(0, slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().Is4() }))]
}

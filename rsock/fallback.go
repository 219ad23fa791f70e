package rsock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// Fallback selects when TCP is used instead of RDMA. See section "Fallback to TCP" of the
// package documentation.
type Fallback int

const (
	// FallbackNone uses RDMA only.
	FallbackNone Fallback = iota
	// FallbackMissing uses TCP if RDMA is missing, that is if the error matches
	// [verbs.ErrNoRDMA]. A dial that is refused, or that the peer does not answer,
	// fails: a peer that an RDMA device leads to must use RDMA.
	FallbackMissing
	// FallbackAlways uses both: a Dialer tries TCP if RDMA fails, unless the context
	// has ended, and a Listener listens on TCP as well, on the same port. On iWARP
	// devices only TCP is used, as iWARP's ports are TCP's.
	FallbackAlways
)

// fallbackError is why TCP has failed, and why it was tried. It matches the error of TCP alone.
type fallbackError struct{ tcp, rdma error }

// afterFallback adds why TCP was tried to the [net.OpError] of a dial.
func afterFallback(err, rdma error) error {
	op, ok := err.(*net.OpError)
	if !ok {
		return err
	}
	if why, ok := rdma.(*net.OpError); ok { // of the same address
		rdma = why.Err
	}
	with := *op
	with.Err = &fallbackError{op.Err, rdma}
	return &with
}

func (e *fallbackError) Error() string {
	return fmt.Sprintf("%v (TCP was tried because RDMA failed: %v)", e.tcp, e.rdma)
}
func (e *fallbackError) Unwrap() error   { return e.tcp }
func (e *fallbackError) Timeout() bool   { return (&net.OpError{Err: e.tcp}).Timeout() }
func (e *fallbackError) Temporary() bool { return (&net.OpError{Err: e.tcp}).Temporary() }

var fallbacks = [...]string{FallbackNone: "none", FallbackMissing: "missing", FallbackAlways: "always"}

// String returns "none", "missing" or "always".
func (f Fallback) String() string {
	if f.check() != nil {
		return fmt.Sprintf("Fallback(%d)", int(f))
	}
	return fallbacks[f]
}

// MarshalText implements encoding.TextMarshaler.
func (f Fallback) MarshalText() ([]byte, error) { return []byte(f.String()), f.check() }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts what String returns, so a
// Fallback can be a flag, see [flag.TextVar].
func (f *Fallback) UnmarshalText(text []byte) error {
	i := slices.Index(fallbacks[:], string(text))
	if i < 0 {
		return fmt.Errorf("fallback %q: %w: none, missing or always", text, verbs.ErrRange)
	}
	*f = Fallback(i)
	return nil
}

const (
	defaultTimeout       = 30 * time.Second // as cm's
	defaultFallbackDelay = 3 * time.Second
)

func (f Fallback) check() error {
	if f < FallbackNone || f > FallbackAlways {
		return fmt.Errorf("option Fallback is %d: %w: %d to %d", f, verbs.ErrRange, FallbackNone, FallbackAlways)
	}
	return nil
}

// applies reports whether a dial or listen that failed with err falls back to TCP.
func (f Fallback) applies(err error) bool {
	return f == FallbackAlways && !errors.Is(err, host.ErrNoSoft) || f == FallbackMissing && errors.Is(err, verbs.ErrNoRDMA)
}

func tcpNetwork(name string) string { return strings.Replace(name, network, "tcp", 1) }

// errIWARP is the reason why FallbackAlways avoids iWARP devices. A plain TCP server on
// the dialed port would get iWARP's handshake, and may not answer for 10 s; if it sends
// something else, siw crashes the kernel (kmemdup in cm_event_handler, Linux 6.1 to 7.2).
var errIWARP = fmt.Errorf("%w: FallbackAlways uses TCP on iWARP devices", verbs.ErrNoRDMA)

func rejectIWARP(r cm.Route, _ *cm.Options) error {
	d, err := r.FindDevice()
	if err == nil && d.IWARP() {
		err = errIWARP
	}
	return err
}

// rdmaAddrs returns the addresses to listen on for RDMA beside a TCP listener at addr:
// addr itself, unless it is an iWARP device's; and if it is a wildcard and there are
// iWARP devices, the addresses of the other devices.
func rdmaAddrs(addr netip.Addr) ([]netip.Addr, error) {
	devs, err := uverbs.Devices()
	if err != nil || !slices.ContainsFunc(devs, uverbs.Device.IWARP) {
		return []netip.Addr{addr}, err
	}
	var addrs []netip.Addr
	for _, d := range devs {
		all, err := cm.DeviceAddrs(d)
		switch {
		case errors.Is(err, syscall.EADDRNOTAVAIL): // it has none
		case err != nil:
			return nil, err
		case !addr.IsUnspecified():
			if d.IWARP() && slices.Contains(all, addr) {
				return nil, errIWARP
			}
		case !d.IWARP():
			addrs = append(addrs, all...)
		}
	}
	if !addr.IsUnspecified() {
		return []netip.Addr{addr}, nil
	}
	if addr.Is4() {
		addrs = slices.DeleteFunc(addrs, netip.Addr.Is6)
	}
	if len(addrs) == 0 {
		return nil, errIWARP
	}
	return addrs, nil
}

// listenTCP listens as package net does.
func (lc *ListenConfig) listenTCP(ctx context.Context, network string, addr string) (net.Listener, error) {
	nlc := net.ListenConfig{KeepAlive: lc.KeepAlive}
	return nlc.Listen(ctx, tcpNetwork(network), addr)
}

// listenBoth listens at addr, which resolved to local, on TCP, and at the same port for
// RDMA. Missing RDMA is not an error; the result missing is the reason.
func (lc *ListenConfig) listenBoth(ctx context.Context, network, addr string, local netip.AddrPort) (rdma []*cm.Listener, tcp net.Listener, missing, err error) {
	tcp, err = lc.listenTCP(ctx, network, addr)
	if err != nil {
		return nil, nil, nil, err
	}
	port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
	addrs, err := rdmaAddrs(local.Addr())
	for i := 0; err == nil && i < len(addrs); i++ {
		var l *cm.Listener
		local = netip.AddrPortFrom(addrs[i], port)
		if l, err = lc.listenRDMA(ctx, network, local); err == nil {
			rdma = append(rdma, l)
		} else if errors.Is(err, verbs.ErrNoRDMA) {
			missing, err = err, nil
		}
	}
	if err != nil && !errors.Is(err, verbs.ErrNoRDMA) {
		tcp.Close()
		for _, l := range rdma {
			l.Close()
		}
		return nil, nil, nil, opError("listen", nil, net.TCPAddrFromAddrPort(local), err)
	}
	return rdma, tcp, cmp.Or(err, missing), nil
}

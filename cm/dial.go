package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// Dialer makes connections. The zero value is usable.
type Dialer struct {
	Options
	// PortSpace is the port space of the port; zero is PortSpaceTCP. In a port space
	// for datagrams the endpoint has a UD QP.
	PortSpace PortSpace
	// LocalAddr is the local address; the zero value leaves the choice to routing.
	LocalAddr netip.AddrPort
	// ResolveTimeout bounds the resolution of the address, and of the route; zero is 2 s each, a
	// negative value is refused with [verbs.ErrRange].
	ResolveTimeout time.Duration
	// ConnectTimeout bounds the handshake; zero is 30 s, a negative value leaves it to the
	// context and the kernel.
	ConnectTimeout time.Duration
	// Resolver resolves names; nil is net.DefaultResolver.
	Resolver *net.Resolver
	// TOS is the type of service, or traffic class, of packets; zero is the system's setting.
	TOS uint8
	// Transport owns what endpoints share; nil is [DefaultTransport].
	Transport *Transport
}

// Dial connects with the zero [Dialer].
func Dial(ctx context.Context, addr string) (*Endpoint, error) { return new(Dialer).Dial(ctx, addr) }

// Dial connects to addr: "10.9.0.1:7471", "[fd00::1%v0]:7471", or a name and a port. It tries the
// addresses of a name in turn, each with its share of the time to the deadline of ctx, and returns
// the first error. ctx has no effect on an established connection.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Endpoint, error) {
	growStack()
	addrs, err := resolve(ctx, d.Resolver, addr)
	if err != nil {
		return nil, fail("dial", addr, err)
	}
	var first error
	for i, dst := range addrs {
		share, cancel := host.WithShare(ctx, len(addrs)-i)
		e, err := d.dial(share, dst)
		cancel()
		if err == nil {
			return e, nil
		}
		first = cmp.Or(first, err)
		if d.Logger != nil && i+1 < len(addrs) {
			d.Logger.Debug("next address is tried", "remote", addrs[i+1].String())
		}
	}
	return nil, fail("dial", addr, first)
}

func (d *Dialer) dial(ctx context.Context, dst netip.AddrPort) (*Endpoint, error) {
	j := newConnLogger(d.Logger)
	var e *Endpoint
	var path *PathRecord // nil resolves one
	for {
		err := retryPort(d.Logger, d.LocalAddr.Port(), func() (err error) {
			if e, err = d.dialOnce(ctx, dst, path, e, j); err != nil {
				j.logStep("dial failed", dst, err)
			}
			return err
		})
		if err == nil {
			return e, nil
		}
		if e != nil {
			if path = e.smallerPath(err); path != nil {
				e.logStep(slog.LevelDebug, "a smaller path MTU is tried", nil)
				continue
			}
			e.discard()
		}
		return nil, err
	}
}

// retryPort calls do, which binds to a port, and repeats it if the connection manager chose a port
// that is in use: iWARP uses TCP's ports, and the connection manager does not know the free ones.
func retryPort(log *slog.Logger, port uint16, do func() error) (err error) {
	for i := range 16 {
		if i > 0 && log != nil {
			log.Debug("port is in use, another is tried", "err", err)
		}
		err = do()
		if _, ok := errors.AsType[setupError](err); ok || port != 0 || !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return err
}

// setupError is an error of making an endpoint. It may be the program's own, and match that of a port in use.
type setupError struct{ error }

func (e setupError) Unwrap() error { return e.error }

// dialOnce dials with a new ID, and makes the endpoint if e is nil. A nil path is resolved. If it
// fails, the caller tries again with the endpoint that it returns, or discards it.
func (d *Dialer) dialOnce(ctx context.Context, dst netip.AddrPort, path *PathRecord, e *Endpoint, j connLogger) (*Endpoint, error) {
	if err := host.Ended(ctx); err != nil {
		return e, err
	}
	if err := d.check(); err != nil {
		return e, err
	}
	t := d.Transport.orDefault()
	t.leaving.endPort(d.LocalAddr.Port())
	id, err := t.newID(d.PortSpace, nil)
	if err != nil {
		return e, err
	}
	if err := d.resolve(ctx, id, dst, path); err != nil {
		id.Close()
		return e, err
	}
	j.logStep("address resolved", dst, nil)
	if e == nil {
		if e, err = newEndpoint(id, Route{}, nil, &d.Options, j, t); err != nil {
			err = setupError{err}
		}
	} else {
		err = e.replaceID(id)
	}
	if err != nil {
		return e, err
	}
	id.m.poll() // the route is usually resolved by now
	if _, err := id.events.await(ctx, RouteResolved); err != nil {
		return e, fmt.Errorf("resolve route: %w", noRoute(err, dst.Addr()))
	}
	e.logStep(slog.LevelDebug, "route resolved", nil)
	if abandoned, err := d.connect(ctx, e); abandoned {
		return nil, err
	} else if err != nil {
		return e, err
	}
	e.watchEvents()
	return e, nil
}

func (d *Dialer) timeout() time.Duration { return cmp.Or(d.ResolveTimeout, 2*time.Second) }

// resolveAddr resolves dst, which finds the device that leads there. The kernel asks the
// neighbour for its address before it is ready to hear the answer, and looks again only when the
// time is over (rdma_resolve_ip in drivers/infiniband/core/addr.c). Over a veth pair the answer
// comes that early, so the first attempts are short.
func (d *Dialer) resolveAddr(ctx context.Context, id *ID, dst netip.AddrPort) error {
	if d.ResolveTimeout < 0 {
		return fmt.Errorf("ResolveTimeout %v: %w", d.ResolveTimeout, verbs.ErrRange)
	}
	if d.TOS != 0 {
		if err := id.SetTOS(d.TOS); err != nil {
			return err
		}
	}
	end := time.Now().Add(d.timeout())
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		left := max(time.Until(end), 0)
		err := id.resolveAddr(d.LocalAddr, dst, min(wait, left))
		if err == nil {
			_, err = id.events.await(ctx, AddrResolved)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("resolve address: %w", host.Ended(ctx))
		case !errors.Is(err, syscall.ETIMEDOUT) || wait >= left:
			return fmt.Errorf("resolve address: %w", noRoute(portInUse(id, d.LocalAddr, err), dst.Addr()))
		}
	}
}

// resolve finds the device and starts to resolve the route, or sets the path. The caller makes
// the QP in the meantime.
func (d *Dialer) resolve(ctx context.Context, id *ID, dst netip.AddrPort, path *PathRecord) error {
	if err := d.resolveAddr(ctx, id, dst); err != nil {
		return err
	}
	if path != nil {
		return id.SetPath(*path)
	}
	if err := id.resolveRoute(d.timeout()); err != nil {
		return fmt.Errorf("resolve route: %w", noRoute(err, dst.Addr()))
	}
	return nil
}

// defaultConnectTimeout is the default of Dialer.ConnectTimeout.
const defaultConnectTimeout = 30 * time.Second

// connect does the handshake. If abandoned is true, the endpoint closes itself.
func (d *Dialer) connect(ctx context.Context, e *Endpoint) (abandoned bool, err error) {
	if err := host.Ended(ctx); err != nil { // it may have ended during d.Setup
		return false, err
	}
	timeout, until := cmp.Or(d.ConnectTimeout, defaultConnectTimeout), time.Time{}
	if timeout > 0 {
		until = time.Now().Add(timeout)
	}
	var ev Event
	if e.iwarp {
		ev, abandoned, err = connectIWARP(ctx, until, d.Transport.orDefault(), e)
	} else if err = e.connect(); err == nil {
		ev, err = e.id.events.awaitUntil(ctx, until, ConnectResponse, Established)
	}
	switch {
	case err == nil:
		if err = e.handleEstablished(&ev); errors.Is(err, syscall.EINVAL) {
			err = e.whyEnded(ctx, err)
		}
	case err == errLate:
		err = fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded)
	case err == context.DeadlineExceeded: // a cause would tell what is late
		err = fmt.Errorf("no answer in time: %w", err)
	}
	if err != nil {
		err = fmt.Errorf("connect: %w", err)
	}
	return abandoned, err
}

// eventDelay is how long whyEnded waits for an event.
const eventDelay = 5 * time.Second

// whyEnded returns the reason of an EINVAL of the connection manager: the peer may have taken back
// its reply, or the device is gone. The event that reports it is on its way: the kernel changes the
// ID's state in one work item and reports the event later, after a long time if many connections
// are made.
func (e *Endpoint) whyEnded(ctx context.Context, err error) error {
	wait, cancel := context.WithTimeout(ctx, eventDelay)
	defer cancel()
	_, why := e.id.events.await(wait)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w (%v)", host.Ended(ctx), err)
	case why != nil && wait.Err() == nil:
		return fmt.Errorf("%w (%v)", why, err)
	}
	return explainState(err)
}

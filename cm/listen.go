package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
)

// Listener accepts connections. The caller must close it.
type Listener struct {
	id        *ID
	id6       *ID      // of the IPv6 wildcard beside IPv4's, or nil
	events    *queue   // of both IDs
	backlog   *backlog // of both IDs
	addr      Addr
	log       *slog.Logger
	transport *Transport

	mu    sync.Mutex
	conns map[*Endpoint]struct{} // accepted and not yet closed
	taken int                    // conns, and requests that Accept has returned and nobody has answered
	most  int                    // of taken
	idle  chan struct{}          // closed when all requests are answered; nil unless Shutdown waits
	stats ListenerStats          // Accepted, Rejected, Failed, and TurnedAway because of most
}

// ListenerStats contains a listener's counters.
type ListenerStats struct {
	Requests   uint64 // connection requests received
	TurnedAway uint64 // requests beyond Backlog or MaxConns
	Accepted   uint64 // connections made by Request.Accept
	Rejected   uint64 // requests rejected by Request.Reject
	Failed     uint64 // handshakes that failed, and requests whose peer was gone before Accept returned them
	Waiting    int    // requests that wait for Accept
	Open       int    // accepted connections that are not closed yet
}

// Stats returns the listener's counters, also after Close.
func (l *Listener) Stats() ListenerStats {
	l.mu.Lock()
	s := l.stats
	s.Open = len(l.conns)
	l.mu.Unlock()
	l.events.mu.Lock()
	defer l.events.mu.Unlock()
	s.Requests, s.Waiting = l.backlog.requests, l.backlog.waiting
	s.TurnedAway += l.backlog.turnedAway
	return s
}

// update calls f, which may count an answered request, with mu held.
func (l *Listener) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	if l.idle != nil && l.taken == len(l.conns) {
		close(l.idle)
		l.idle = nil
	}
}

// waitAnswered waits until each request that Accept has returned is a connection, or has failed or
// been rejected.
func (l *Listener) waitAnswered(ctx context.Context) error {
	l.mu.Lock()
	if l.taken > len(l.conns) && l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return host.Ended(ctx)
	}
}

// take counts a request that Accept returns, unless it is one too many.
func (l *Listener) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken >= l.most {
		l.stats.TurnedAway++
		return false
	}
	l.taken++
	return true
}

func (l *Listener) closed(e *Endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.conns[e]; ok {
		delete(l.conns, e)
		l.taken--
	}
}

// ListenConfig contains options for listening. The zero value listens as [Listen] does.
type ListenConfig struct {
	// Backlog is the number of requests that may wait for [Listener.Accept]; zero is
	// 1024. Further requests are turned away.
	Backlog int
	// MaxConns is the number of connections that may be open, from Accept to [Endpoint.Close]; zero
	// is an eighth of the mappings that the kernel allows (vm.max_map_count), 8191 of 65530, as
	// each takes four unless it shares CQs; negative is no limit. Further requests are turned away.
	MaxConns int
	// PortSpace is as in [Dialer].
	PortSpace PortSpace
	// ReuseAddr allows a port that other IDs are bound to, if none of them listens.
	ReuseAddr bool
	// IPv6Only leaves IPv4's wildcard at the port of IPv6's to another listener.
	IPv6Only bool
	// Logger, if set, logs requests, and connections whose [Options] have no Logger.
	Logger *slog.Logger
	// Transport owns what endpoints share; nil is [DefaultTransport].
	Transport *Transport
}

// Listen listens for connections on addr: "10.9.0.1:7471", ":7471" or "[::]:7471" for all
// addresses, or "0.0.0.0:7471" for all of IPv4. Port 0 selects a free port. The error matches
// [verbs.ErrNoRDMA] if no device that this process can open serves the address, as with 127.0.0.1.
func Listen(ctx context.Context, addr string) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, addr)
}

// Listen is like the function [Listen], with options.
func (c *ListenConfig) Listen(ctx context.Context, addr string) (l *Listener, err error) {
	defer wrap(&err, "listen", addr)
	l = &Listener{log: c.Logger, transport: c.Transport.orDefault(), conns: map[*Endpoint]struct{}{}, most: c.maxConns(), backlog: &backlog{log: c.Logger}}
	addrs, err := resolve(ctx, nil, addr)
	if err != nil {
		return nil, err
	}
	local := host.ListenAddr(addrs)
	if strings.HasPrefix(addr, ":") { // as package net does
		local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
	}
	if local.Addr().IsLoopback() { // the kernel listens there, but it may let no peer connect
		if _, err := (&Dialer{Transport: l.transport}).pathTo(ctx, local); err != nil {
			return nil, err
		}
	}
	err = retryPort(c.Logger, local.Port(), func() error { return c.open(l, local) })
	if errors.Is(err, syscall.ENODEV) {
		err = noRoute(err, local.Addr())
	}
	if err != nil {
		return nil, err
	}
	if local.Addr().IsUnspecified() && !l.transport.reachable(local.Addr(), c.IPv6Only) {
		l.Close()
		return nil, noAddress(local.Addr(), c.IPv6Only)
	}
	return l, nil
}

func (c *ListenConfig) maxConns() int {
	if c.MaxConns < 0 {
		return math.MaxInt
	}
	return cmp.Or(c.MaxConns, max(host.MaxMappings()/8, 1))
}

// reachable reports whether a device has an address that a wildcard covers in this network
// namespace; [::] covers both families unless ipv6Only is set. The kernel listens in any case, for
// example in a container that shares the devices of its host, but not the interfaces.
func (t *Transport) reachable(wildcard netip.Addr, ipv6Only bool) bool {
	addrs, err := localAddrs()
	if err != nil {
		return true // not known
	}
	addrs = slices.DeleteFunc(addrs, netip.Addr.IsLoopback) // which lead to any device
	for _, d := range host.Devices() {                      // also on networks that have no interfaces
		addrs = append(addrs, d.Addrs...)
	}
	for _, a := range addrs {
		if a.Is4() && ipv6Only || wildcard.Is4() && !a.Is4() {
			continue
		}
		if r, err := t.routeFrom(a); r.hasDevice() || err != nil {
			return true
		}
	}
	return false
}

// noAddress is the error of listening on a wildcard that no peer can reach.
func noAddress(wildcard netip.Addr, ipv6Only bool) error {
	family := "IP"
	switch {
	case wildcard.Is4():
		family = "IPv4"
	case ipv6Only:
		family = "IPv6"
	}
	devices, _ := describeDevices()
	return fmt.Errorf("%w to %v: no device has an %s address in this network namespace; devices: %s: %w",
		verbs.ErrNoRoute, wildcard, family, strings.Join(devices, ", "), syscall.ENODEV)
}

// open makes the listener's IDs. The wildcard of both families has one of each: with one ID of
// [::], the kernel rejects IPv4 connections on iWARP (iw_conn_req_handler).
func (c *ListenConfig) open(l *Listener, local netip.AddrPort) (err error) {
	l.events = newQueue(nil)
	if local.Addr() != netip.IPv6Unspecified() || c.IPv6Only {
		l.id, l.addr, err = c.openID(l, local, c.IPv6Only)
		return err
	}
	l.id, l.addr, err = c.openID(l, netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()), false)
	if err != nil {
		return err
	}
	id6, addr6, err := c.openID(l, netip.AddrPortFrom(local.Addr(), l.addr.Port()), true)
	if errors.Is(err, syscall.EAFNOSUPPORT) { // IPv6 is disabled
		return nil
	}
	if err != nil {
		l.id.Close()
		return err
	}
	l.id6, l.addr = id6, addr6
	return nil
}

func (c *ListenConfig) openID(l *Listener, local netip.AddrPort, only6 bool) (*ID, Addr, error) {
	id, err := l.transport.newID(c.PortSpace, l.events)
	if err != nil {
		return nil, Addr{}, err
	}
	id.backlog = l.backlog
	var route Route
	if c.ReuseAddr {
		err = id.SetReuseAddr(true)
	}
	if err == nil && only6 {
		err = id.SetAFOnly(true)
	}
	if err == nil {
		l.transport.leaving.endPort(local.Port())
		err = portInUse(id, local, id.bind(local))
	}
	if err == nil {
		route, err = id.Route()
	}
	if err == nil {
		err = route.usable()
	}
	if err == nil {
		l.events.mu.Lock()
		l.backlog.local = route.Local.String()
		l.events.mu.Unlock()
		err = id.listen(c.Backlog)
	}
	if err != nil {
		id.Close()
		return nil, Addr{}, err
	}
	return id, Addr{route.Local}, nil
}

// portInUse takes the error of binding an ID to an address. It replaces EADDRNOTAVAIL, which the
// kernel returns for a port that a wildcard uses and for a wildcard whose port is in use
// (cma_check_port), with EADDRINUSE if the address can be bound with another port.
func portInUse(id *ID, local netip.AddrPort, err error) error {
	if local.Port() == 0 || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return err
	}
	other, oerr := id.m.addID(id.space, nil).create()
	if oerr != nil {
		return err
	}
	defer other.Close()
	if other.bind(netip.AddrPortFrom(local.Addr(), 0)) != nil {
		return err
	}
	return syscall.EADDRINUSE
}

// Addr returns the address that the listener listens on.
func (l *Listener) Addr() Addr { return l.addr }

// Accept waits for a connection request. It fails with [verbs.ErrClosed] after Close, and with
// [verbs.ErrDeviceRemoved] once the device has been removed.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		ev, err := l.events.next(ctx, time.Time{})
		if err == nil {
			if err = ev.Err(); errors.Is(err, verbs.ErrDeviceRemoved) {
				l.events.unpop(ev) // for other calls
			}
		}
		if err != nil {
			return nil, fail("accept on", l.addr.String(), err)
		}
		if ev.Type != ConnectRequest {
			continue
		}
		route, err := ev.NewID.Route()
		if err != nil { // the peer is gone already
			ev.NewID.Close()
			l.update(func() { l.stats.Failed++ })
			continue
		}
		if !l.take() {
			ev.NewID.reject([]byte(shortages[0].code))
			ev.NewID.Close()
			if l.log != nil {
				l.log.Warn("connection request turned away: too many connections", "remote", route.Remote.String(), "maxConns", l.most)
			}
			continue
		}
		if l.log != nil {
			l.log.Debug("connection requested", "local", route.Local.String(), "remote", route.Remote.String())
		}
		return &Request{l: l, id: ev.NewID, event: ev, route: route}, nil
	}
}

// Close stops listening; Accept returns [verbs.ErrClosed]. It does not affect requests
// that Accept has returned, nor accepted connections.
func (l *Listener) Close() error {
	if l == nil {
		return verbs.ErrClosed
	}
	if l.id6 == nil {
		return l.id.Close()
	}
	return errors.Join(l.id6.Close(), l.id.Close())
}

// Shutdown stops listening and waits until the requests that Accept has returned are answered and
// the accepted connections have ended, or ctx has. It ends no connection.
func (l *Listener) Shutdown(ctx context.Context) error {
	if err := l.Close(); err != nil {
		return err
	}
	if err := l.waitAnswered(ctx); err != nil {
		return fail("shutdown", l.addr.String(), err)
	}
	var conns []*Endpoint
	l.update(func() { conns = slices.Collect(maps.Keys(l.conns)) })
	for _, e := range conns {
		select {
		case <-e.Done():
		case <-ctx.Done():
			return fail("shutdown", l.addr.String(), host.Ended(ctx))
		}
	}
	return nil
}

// Request is a connection request of a peer. The caller must either accept or reject it, once.
type Request struct {
	l     *Listener
	id    *ID
	event Event
	route Route

	answered atomic.Bool
}

func init() {
	bridge.OnEstablished = func(request any, f func()) {
		id := request.(*Request).id
		id.events.mu.Lock()
		defer id.events.mu.Unlock()
		id.established = f
	}
}

// RemoteAddr returns the peer's address, LocalAddr the address that the peer dialed.
func (r *Request) RemoteAddr() Addr { return Addr{r.route.Remote} }
func (r *Request) LocalAddr() Addr  { return Addr{r.route.Local} }

// PrivateData returns the private data of the peer's request.
func (r *Request) PrivateData() []byte { return r.event.PrivateData }

// Accept accepts the connection and waits until it is up, or rejects it if that fails or ctx ends.
// On RoCE and InfiniBand it waits for the peer's confirmation 70 s at most, also if ctx allows more;
// the error then matches [context.DeadlineExceeded].
// If the peer has sent and disconnected at once, the endpoint has ended, and its completed receives
// hold the messages.
func (r *Request) Accept(ctx context.Context, opt Options) (e *Endpoint, err error) {
	growStack()
	defer wrap(&err, "accept from", r.RemoteAddr().String())
	if r.answered.Swap(true) {
		return nil, verbs.ErrClosed
	}
	if opt.Logger == nil {
		opt.Logger = r.l.log
	}
	j := newConnLogger(opt.Logger)
	accepted := false
	defer func() {
		if err = explainState(err); !accepted { // by an error, or a panic of the program's Setup
			r.l.update(func() { r.l.stats.Failed++; r.l.taken-- })
			j.log(slog.LevelDebug, "accepting failed", "", r.route.Local, r.route.Remote, err)
		}
	}()
	if err := host.Ended(ctx); err != nil {
		r.id.rejectFor(err)
		r.id.Close() // the kernel rejects a request that is destroyed unanswered
		return nil, err
	}
	e, err = newEndpoint(r.id, r.route, &r.event, &opt, j, r.l.transport)
	if err != nil {
		return nil, err
	}
	ended, err := r.acceptAndWait(ctx, e)
	if err != nil {
		e.discard()
		return nil, err
	}
	e.listener = r.l
	r.l.update(func() {
		r.l.conns[e] = struct{}{}
		r.l.stats.Accepted++
	})
	accepted = true
	e.watchEvents()
	if ended {
		e.end(verbs.ErrDisconnected, true, true)
	}
	return e, nil
}

// acceptAndWait accepts the request and waits until the peer has confirmed the connection. ended
// reports that the peer has disconnected it already: its confirmation is late or lost then, so the
// connection counts as established, and as ended right after.
func (r *Request) acceptAndWait(ctx context.Context, e *Endpoint) (ended bool, err error) {
	err = host.Ended(ctx) // it may have ended during opt.Setup
	if err == nil {
		err = e.accept()
	}
	if err != nil {
		r.id.rejectFor(err)
		return false, err
	}
	if r.id.space.datagram() {
		return false, nil
	}
	ev, err := e.awaitEstablished(ctx, e.plan.RecvCQ == nil)
	if err != nil {
		// Destroying the ID rejects the request now. If this did, with a reason, the kernel would wait
		// for the repetitions of the acceptance before it destroys the ID, 70 s (ib_send_cm_rej).
		return false, err
	}
	return ev.Type == Disconnected, e.handleEstablished(&ev)
}

// awaitEstablished waits until the peer confirms the acceptance. The confirmation (RTU) is sent
// once; if the network loses or delays it, other signs prove that the peer is up:
//
//   - a disconnect request (DREQ): only a side that is up sends one, and this side's QP may
//     have acknowledged its data;
//   - a completed receive, in a CQ that only this endpoint uses: the connection manager is told
//     (ib_cm_notify, IBTA 12.9.7.2). Otherwise it would repeat the acceptance after 4 s.
//
// iWARP has neither: there the kernel's TCP connection is up before the acceptance.
func (e *Endpoint) awaitEstablished(ctx context.Context, ownCQ bool) (Event, error) {
	if e.iwarp {
		return e.id.events.await(ctx, Established)
	}
	limit := time.Now().Add(establishTimeout)
	passed := false // a message has come, which may have passed the confirmation
	for wait := firstLook; ; wait = min(2*wait, 100*time.Millisecond) {
		until := limit
		if look := time.Now().Add(wait); ownCQ && look.Before(limit) {
			until = look
		}
		ev, err := e.id.events.awaitUntil(ctx, until, Established, Disconnected)
		switch {
		case err != errLate:
			return ev, err
		case until == limit:
			return Event{}, errNotConfirmed
		case passed:
			e.id.Notify(verbs.EventCommEst) // fails if the confirmation has just come
			ownCQ = false
		case bridge.HasCompletions(e.RecvCQ):
			passed, wait = true, firstLook/2 // the time of the confirmation, which is on its way, see above
		}
	}
}

// firstLook is the time until awaitEstablished looks for a message for the first time. A
// confirmation takes less, if it is not lost.
const firstLook = 10 * time.Millisecond

// establishTimeout bounds the wait for the peer's confirmation. The connection manager repeats the
// acceptance as often and as slowly as the request asks for, which may take days; rdma_cm's
// requests allow 66 s.
const establishTimeout = 70 * time.Second

var errNotConfirmed = fmt.Errorf("the peer has not confirmed the connection within %v: %w", establishTimeout, context.DeadlineExceeded)

// Reject makes the peer's dial fail with a [*RejectedError].
func (r *Request) Reject(privateData []byte) (err error) {
	defer wrap(&err, "reject", r.RemoteAddr().String())
	if err := checkPrivateData(privateData); err != nil {
		return err
	}
	if r.answered.Swap(true) {
		return verbs.ErrClosed
	}
	r.l.update(func() { r.l.stats.Rejected++; r.l.taken-- })
	err = r.id.reject(privateData)
	err = cmp.Or(err, r.id.Close())
	if r.l.log != nil {
		r.l.log.Warn("connection rejected by the program", "local", r.route.Local.String(), "remote", r.route.Remote.String())
	}
	return err
}

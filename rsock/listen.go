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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/option"
)

// ListenConfig contains options for listening. The zero value is usable.
type ListenConfig struct {
	// Options tunes the connections.
	Options
	// Fallback selects when the listener uses TCP; zero means never.
	Fallback Fallback
	// Backlog is the number of RDMA connections that may be in the handshake or wait
	// for Accept, each with its memory. Zero means 128, the most is 65535. Peers
	// beyond it wait until there is room.
	Backlog int
	// ReuseAddr allows a port that dials are bound to, as in [cm.ListenConfig].
	ReuseAddr bool
	// MaxConns is the number of RDMA connections that may be open, as in [cm.ListenConfig].
	MaxConns int
	// HandshakeTimeout bounds the handshake of a connection, without the time in which requests of
	// others that came before are served. Zero means 10 s, a negative value no limit.
	HandshakeTimeout time.Duration
	// Transport selects the RDMA devices, see [cm.Transport]. Nil means [cm.DefaultTransport].
	Transport *cm.Transport
	// Logger logs the events of the listener and its connections: their start and end
	// at level Debug, fallbacks and smaller buffers at Info, rejected peers, failed
	// handshakes and protocol errors at Warn. Nil logs nothing.
	Logger *slog.Logger
}

// Listener accepts connections. It is a [net.Listener], and all its methods may be
// called by several goroutines. Handshakes run in the background and do not delay each
// other. The caller must close it.
type Listener struct {
	rdma     []*cm.Listener
	tcp      net.Listener // nil if there is none
	addr     net.Addr
	conf     ListenConfig
	log      *slog.Logger
	ctx      context.Context // ends when Accept can return no more; its cause is the reason
	cancel   context.CancelCauseFunc
	accept   deadline      // of Accept
	slots    chan struct{} // one for each connection up to Accept
	order    order
	making   chan struct{} // one for each connection whose objects are made, see handshake
	conns    chan *Conn
	failed   chan error    // the first failure since Accept returned one
	tcpConns chan accepted // what tcp accepts
	wg       sync.WaitGroup
	closed   atomic.Bool

	mu    sync.Mutex
	stats ListenerStats // without Open and Conns
	tally tally
}

type accepted struct {
	c   net.Conn
	err error
}

// Listen listens with the zero [ListenConfig]. The listener is a [*Listener].
func Listen(network, addr string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, addr)
}

// Listen listens on addr: "10.9.0.1:7471", ":7471" or "[::]:7471" for all addresses, or
// "0.0.0.0:7471" for all of IPv4; port 0 means a free one. With network "rdma4" or "rdma6" a
// wildcard covers only that family. For network see [Dialer.DialContext]. Of the addresses of a
// name Listen uses the first, IPv4 if there is one; ctx bounds the lookup. If RDMA is missing the
// error matches [verbs.ErrNoRDMA], unless Fallback applies. The listener is a [*Listener].
func (lc *ListenConfig) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	conf := *lc
	conf.HandshakeTimeout = cmp.Or(conf.HandshakeTimeout, 10*time.Second)
	conf.Linger = cmp.Or(conf.Linger, -1)
	_, err := conf.withDefaults()
	if err == nil {
		err = conf.Fallback.check()
	}
	if err == nil {
		err = option.Set(option.Size("Backlog", &conf.Backlog, defaultBacklog, 1, maxBacklog))
	}
	var addrs []netip.AddrPort
	if err == nil {
		addrs, err = lookup(ctx, nil, network, addr)
	}
	if err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	l := &Listener{conf: conf, log: logger(conf.Logger), failed: make(chan error, 1), tcpConns: make(chan accepted)}
	local := host.ListenAddr(addrs)
	if strings.HasPrefix(addr, ":") && !strings.HasSuffix(network, "4") {
		local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
	}
	if err := l.open(ctx, network, addr, local); err != nil {
		return nil, err
	}
	slots := conf.Backlog + max(len(l.rdma), 1) - 1 // each serve goroutine that waits for a request holds one
	l.slots, l.conns = make(chan struct{}, slots), make(chan *Conn, slots)
	l.making = make(chan struct{}, maxMaking)
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.accept.init(l.ctx)
	for _, r := range l.rdma {
		l.wg.Go(func() { l.serve(r) })
	}
	if l.tcp != nil {
		l.wg.Go(l.serveTCP)
	}
	return l, nil
}

const (
	defaultBacklog = 128
	maxBacklog     = 0xffff
)

// open starts to listen at addr, which resolved to local.
func (l *Listener) open(ctx context.Context, network, addr string, local netip.AddrPort) (err error) {
	if !local.Addr().IsUnspecified() {
		addr = local.String() // the address that a name means for both
	}
	var missing error
	switch lc := &l.conf; {
	case lc.Fallback == FallbackAlways:
		for range 16 { // a port that is free for TCP may be in use for RDMA
			l.rdma, l.tcp, missing, err = lc.listenBoth(ctx, network, addr, local)
			if local.Port() != 0 || !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
		}
	default:
		var r *cm.Listener
		if r, err = lc.listenRDMA(ctx, network, local); err == nil {
			l.rdma = []*cm.Listener{r}
			break
		}
		err = opError("listen", nil, net.TCPAddrFromAddrPort(local), err)
		if lc.Fallback.applies(err) {
			missing = err
			l.tcp, err = lc.listenTCP(ctx, network, addr)
		}
	}
	if err != nil {
		return err
	}
	if len(l.rdma) == 0 {
		l.addr = l.tcp.Addr()
		l.log.Info("listening on TCP only", "addr", l.addr, "err", missing)
		return nil
	}
	l.addr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), l.rdma[0].Addr().Port()))
	l.log.Debug("listening", "addr", l.addr, "tcp", l.tcp != nil)
	return nil
}

// listenRDMA listens as package net does, for which tcp6 is IPv6 only.
func (lc *ListenConfig) listenRDMA(ctx context.Context, network string, local netip.AddrPort) (*cm.Listener, error) {
	only6 := strings.HasSuffix(network, "6")
	return (&cm.ListenConfig{MaxConns: lc.MaxConns, ReuseAddr: lc.ReuseAddr, Transport: lc.Transport, IPv6Only: only6}).Listen(ctx, local.String())
}

// serve starts a handshake for each request.
func (l *Listener) serve(r *cm.Listener) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		req, err := r.Accept(l.ctx)
		if err != nil {
			l.cancel(err)
			return
		}
		t := l.order.enter(req)
		l.count(func(s *ListenerStats) { s.Handshakes++ })
		l.wg.Go(func() {
			defer t.leave()
			c, err := l.handshake(req)
			l.count(func(s *ListenerStats) {
				s.Handshakes--
				if err == nil {
					s.Pending++
				}
			})
			if err == nil {
				t.await()
				l.conns <- c
				return
			}
			<-l.slots
			l.handshakeFailed(req, err)
		})
	}
}

// order lets Accept return connections in the order in which their peers were connected, as TCP
// does: a peer that is connected may dial a second time, or tell another to dial.
type order struct {
	mu   sync.Mutex
	last *turn // of the peer that was connected last
}

// turn is the place of a handshake.
type turn struct {
	order  *order
	before *turn         // guarded by order.mu
	over   chan struct{} // closed, with order.mu held, when the connection waits for Accept or the handshake has failed
}

func (o *order) enter(req *cm.Request) *turn {
	t := &turn{order: o, over: make(chan struct{})}
	bridge.OnEstablished(req, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		select {
		case <-t.over: // it is up by other signs
		default:
			t.before, o.last = o.last, t
		}
	})
	return t
}

// await waits for the handshake before it. Its peer is connected, so only this side has work left.
func (t *turn) await() {
	t.order.mu.Lock()
	before := t.before
	t.order.mu.Unlock()
	if before != nil {
		<-before.over
	}
}

func (t *turn) leave() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.before = nil // and all those before it
	close(t.over)
}

// handshakeFailed counts, logs and, if resources are scarce, reports a failed handshake.
func (l *Listener) handshakeFailed(req *cm.Request, err error) {
	msg, counter := "handshake failed", &l.stats.Failed
	if errors.Is(err, ErrProtocol) {
		msg, counter = "rejected peer", &l.stats.Rejected
	}
	l.count(func(*ListenerStats) { *counter++ })
	if l.ctx.Err() == nil {
		l.log.Warn(msg, "remote", req.RemoteAddr(), "err", err)
	}
	if slices.ContainsFunc(resourceErrors, func(target error) bool { return errors.Is(err, target) }) {
		select {
		case l.failed <- &acceptError{err}:
		default:
		}
	}
}

func (l *Listener) serveTCP() {
	for {
		c, err := l.tcp.Accept()
		select {
		case l.tcpConns <- accepted{c, err}:
		case <-l.ctx.Done():
			if err == nil {
				c.Close()
			}
			return
		}
	}
}

// maxMaking bounds the connections whose objects a listener makes at a time.
const maxMaking = 8

// handshake accepts a peer's request for a connection. It makes the objects of few connections at a
// time, in the order of the requests: the kernel makes one after the other in any case, and with
// many requests on a slow machine all would be late, instead of the last ones. Peers cannot prolong
// this phase.
func (l *Listener) handshake(req *cm.Request) (*Conn, error) {
	select {
	case l.making <- struct{}{}:
	case <-l.ctx.Done():
		req.Reject(nil)
		return nil, l.ctx.Err()
	}
	made := sync.OnceFunc(func() { <-l.making })
	defer made()
	ctx := l.ctx
	if l.conf.HandshakeTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.conf.HandshakeTimeout, fmt.Errorf("no handshake within HandshakeTimeout of %v: %w", l.conf.HandshakeTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	// The hello is in the request, so peers of other protocols are refused before they cost memory.
	peer, err := parseHello(req.PrivateData())
	if err != nil {
		req.Reject(nil)
		return nil, err
	}
	c, opt, err := newConn(l.conf.Options, l.conf.Logger)
	if err != nil {
		req.Reject(nil)
		return nil, err
	}
	setup := opt.Setup
	opt.Setup = func(e *cm.Endpoint) error {
		defer made()
		return setup(e)
	}
	if _, err := req.Accept(ctx, opt); err != nil {
		return nil, err
	}
	c.connected(peer, l)
	return c, nil
}

// resourceErrors are the errors of a process that lacks memory, files or permissions.
var resourceErrors = []error{
	syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM,
}

// acceptError is the error of a connection that could not be accepted. It is temporary:
// the listener continues.
type acceptError struct{ error }

func (e *acceptError) Unwrap() error   { return e.error }
func (e *acceptError) Timeout() bool   { return false }
func (e *acceptError) Temporary() bool { return true }

// Accept waits for a connection, which is a [*Conn], or a [*net.TCPConn] if it uses TCP. It fails
// with net.ErrClosed after Close, and with [verbs.ErrDeviceRemoved] after the device's removal.
// After errors that are not temporary, close the listener and listen again.
//
// If this process lacks resources for a connection, such as locked memory or files, the listener
// rejects the peer, and Accept returns a [net.Error] whose method Temporary reports true, as
// [net.TCPListener] does for EMFILE: the listener continues, and so should the caller. The servers
// of net/http and gRPC log such errors and call Accept again after a pause. If several connections
// fail before Accept is called, it reports the first. Connections that fail because of the peer are
// logged and counted.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		ctx := l.accept.current()
		switch {
		case l.ctx.Err() != nil:
			return nil, l.acceptErr()
		case ctx.Err() == context.DeadlineExceeded:
			return nil, &net.OpError{Op: "accept", Net: network, Addr: l.addr, Err: os.ErrDeadlineExceeded}
		}
		c, err, ok := l.next(ctx)
		if ok {
			return c, err
		}
	}
}

// SetDeadline sets the time at which running and later calls of Accept fail with
// [os.ErrDeadlineExceeded]. The zero value means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if l.closed.Load() {
		return opError("set", nil, l.Addr(), net.ErrClosed)
	}
	l.accept.set(t)
	return nil
}

// next waits for a result of Accept. It reports false if ctx ends first.
func (l *Listener) next(ctx context.Context) (net.Conn, error, bool) {
	select {
	case c := <-l.conns:
		<-l.slots
		c.count(&l.tally)
		l.count(func(s *ListenerStats) { s.Pending--; s.Accepted++ })
		return c, nil, true
	case a := <-l.tcpConns:
		if a.err == nil {
			l.count(func(s *ListenerStats) { s.AcceptedTCP++ })
			l.log.Debug("accepted by TCP", "local", a.c.LocalAddr(), "remote", a.c.RemoteAddr())
		}
		return a.c, a.err, true
	case err := <-l.failed:
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.addr, Err: err}, true
	case <-ctx.Done():
		return nil, nil, false
	}
}

func (l *Listener) acceptErr() error {
	why := context.Cause(l.ctx)
	if l.closed.Load() {
		why = net.ErrClosed
	}
	return opError("accept", nil, l.addr, why)
}

// Close stops listening and ends the connections that have not been accepted.
// Connections that Accept returned are not affected.
func (l *Listener) Close() (err error) {
	if l == nil {
		return net.ErrClosed
	}
	if l.closed.Swap(true) {
		return opError("close", nil, l.addr, net.ErrClosed)
	}
	l.cancel(net.ErrClosed)
	if l.tcp != nil {
		err = l.tcp.Close()
	}
	for _, r := range l.rdma {
		err = cmp.Or(r.Close(), err)
	}
	l.wg.Wait()
	for len(l.conns) > 0 {
		select {
		case c := <-l.conns:
			l.count(func(s *ListenerStats) { s.Pending-- })
			c.SetLinger(0)
			c.Close()
		default: // Accept took it
		}
	}
	if err != nil {
		err = opError("close", nil, l.addr, err)
	}
	return err
}

// Shutdown stops listening, unless Close has, and waits until the connections that Accept returned
// have ended, or ctx has. It ends none. Then all written data is delivered: a server calls Shutdown
// before its process exits, after http.Server.Shutdown or gRPC's GracefulStop, which close the
// connections. The kernel takes care of TCP connections.
func (l *Listener) Shutdown(ctx context.Context) error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	for _, r := range l.rdma {
		if err := r.Shutdown(ctx); err != nil {
			return opError("shutdown", nil, l.addr, err)
		}
	}
	return nil
}

// Addr returns the address of the listener, a [*net.TCPAddr], by RDMA and by TCP.
func (l *Listener) Addr() net.Addr { return l.addr }

// RDMA reports whether the listener serves RDMA: false if Fallback applied, and it listens on TCP
// only.
func (l *Listener) RDMA() bool { return len(l.rdma) > 0 }

var _ net.Listener = (*Listener)(nil)

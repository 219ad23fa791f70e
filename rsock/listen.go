package rsock

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs/cm"
)

// ListenConfig tunes a [Listener]. The zero value is usable.
type ListenConfig struct {
	Options // of the connections
	// Backlog is how many connections may be coming up, or up and waiting for
	// Accept; zero is 128. Each has its memory. Those who ask for more have to
	// wait until there is room.
	Backlog int
	// HandshakeTimeout is when a connection that does not come up is given up;
	// zero is 10 s.
	HandshakeTimeout time.Duration
}

// Listener takes connections: a [net.Listener], of which all methods may be
// called by several goroutines. Handshakes run in the background, and none
// holds up another. Whoever made it closes it.
type Listener struct {
	l      *cm.Listener
	conf   ListenConfig
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{} // one for each connection up to Accept
	conns  chan *Conn
	failed chan error // the first since Accept returned one
	wg     sync.WaitGroup
	once   sync.Once

	ended chan struct{} // closed when nothing more can come
	why   error
}

// Listen listens with the zero [ListenConfig].
func Listen(network, addr string) (*Listener, error) {
	return ListenConfig{}.Listen(context.Background(), network, addr)
}

// Listen takes connections on addr: "10.9.0.1:7471", or ":7471" for all IPv4 and
// "[::]:7471" for all addresses; port 0 takes a free one. For network see
// [Dialer.DialContext]. ctx bounds the look-up of a name.
func (lc ListenConfig) Listen(ctx context.Context, network, addr string) (*Listener, error) {
	addrs, err := lookup(ctx, nil, network, addr)
	if err != nil {
		return nil, opError("listen", network, nil, nil, err)
	}
	cl, err := cm.Listen(ctx, addrs[0].String())
	if err != nil {
		return nil, opError("listen", network, nil, cm.Addr{AddrPort: addrs[0]}, err)
	}
	lc.Backlog = cmp.Or(lc.Backlog, 128)
	lc.HandshakeTimeout = cmp.Or(lc.HandshakeTimeout, 10*time.Second)
	l := &Listener{
		l: cl, conf: lc, slots: make(chan struct{}, lc.Backlog), conns: make(chan *Conn, lc.Backlog),
		failed: make(chan error, 1), ended: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.serve)
	return l, nil
}

// serve starts a handshake for each request.
func (l *Listener) serve() {
	defer close(l.ended)
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			l.why = net.ErrClosed
			return
		}
		req, err := l.l.Accept(l.ctx)
		if err != nil {
			l.why = err
			if l.ctx.Err() != nil {
				l.why = net.ErrClosed
			}
			return
		}
		l.wg.Go(func() {
			c, err := l.shake(req)
			if err == nil {
				l.conns <- c
				return
			}
			<-l.slots
			if scarce(err) {
				select {
				case l.failed <- &acceptError{err}:
				default:
				}
			}
		})
	}
}

// shake makes the connection that a peer asks for.
func (l *Listener) shake(req *cm.Request) (*Conn, error) {
	peer, err := parseHello(req.PrivateData())
	if err != nil {
		req.Reject(nil)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.conf.HandshakeTimeout)
	defer cancel()
	c, opt := newConn(l.conf.Options)
	setup := opt.Setup
	opt.Setup = func(e *cm.Endpoint) error {
		err := setup(e)
		if errors.Is(err, syscall.ENOMEM) {
			e.ID().Reject(noMemory)
		}
		return err
	}
	if _, err := req.Accept(ctx, opt); err != nil {
		return nil, err
	}
	c.connected(peer, true)
	return c, nil
}

// scarce reports whether a connection failed because this process lacks memory,
// files or permissions.
func scarce(err error) bool {
	for _, e := range []error{
		syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// acceptError is a connection that could not be accepted. It is temporary: the
// listener goes on.
type acceptError struct{ error }

func (e *acceptError) Unwrap() error   { return e.error }
func (e *acceptError) Timeout() bool   { return false }
func (e *acceptError) Temporary() bool { return true }

// Accept waits for a connection, which is a [*Conn]. It fails with net.ErrClosed
// after Close.
//
// If this process lacks what a connection needs, such as locked memory or files,
// the peer's connection is rejected, and Accept returns an error of which the
// method Temporary reports true, as [net.TCPListener] does for EMFILE: the
// listener goes on, and so should the caller. The servers of net/http and gRPC
// log such errors and call Accept again after a pause. If several connections
// fail before Accept is called, it reports the first. Connections that fail
// because of the peer are not reported.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.ctx.Done():
		return nil, l.fail("accept", net.ErrClosed)
	default:
	}
	select {
	case c := <-l.conns:
		<-l.slots
		return c, nil
	case err := <-l.failed:
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: err}
	case <-l.ended:
		return nil, l.fail("accept", l.why)
	}
}

func (l *Listener) fail(op string, err error) error { return opError(op, network, nil, l.Addr(), err) }

// Close stops listening and breaks off what has not been accepted yet.
// Connections that Accept returned are not affected.
func (l *Listener) Close() error {
	err := error(net.ErrClosed)
	l.once.Do(func() {
		l.cancel()
		err = l.l.Close()
		l.wg.Wait()
		for len(l.conns) > 0 {
			select {
			case c := <-l.conns:
				c.SetLinger(0)
				c.Close()
			default: // Accept had it
			}
		}
	})
	if err != nil {
		return l.fail("close", err)
	}
	return nil
}

// Addr is where the listener listens, of type [cm.Addr].
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

var _ net.Listener = (*Listener)(nil)

package rsock

import (
	"cmp"
	"context"
	"net"
	"sync"
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
		l: cl, conf: lc, slots: make(chan struct{}, lc.Backlog), conns: make(chan *Conn, lc.Backlog), ended: make(chan struct{}),
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
			if c := l.shake(req); c != nil {
				l.conns <- c
			} else {
				<-l.slots
			}
		})
	}
}

// shake makes the connection that a peer asks for.
func (l *Listener) shake(req *cm.Request) *Conn {
	peer, err := parseHello(req.PrivateData())
	if err != nil {
		req.Reject(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.conf.HandshakeTimeout)
	defer cancel()
	c, opt := newConn(l.conf.Options)
	if _, err := req.Accept(ctx, opt); err != nil {
		return nil
	}
	c.connected(peer, true)
	return c
}

// Accept waits for a connection, which is a [*Conn]. It fails with net.ErrClosed
// after Close.
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

package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rsock"
)

// Families calls listen with an address, whose host may be empty: then with the wildcard of each
// address family, since the IPv6 wildcard does not accept IPv4 connections on iWARP. The network is
// "rdma6" for IPv6 only. A family of which no device has an address is left out if another has one.
func Families[L io.Closer](addr string, listen func(network, addr string) (L, error)) (all []L, err error) {
	port, wildcard := strings.CutPrefix(addr, ":")
	if !wildcard {
		l, err := listen("rdma", addr)
		if err != nil {
			return nil, err
		}
		return []L{l}, nil
	}
	var missing []error
	for _, family := range [][2]string{{"rdma4", "0.0.0.0:"}, {"rdma6", "[::]:"}} {
		l, err := listen(family[0], family[1]+port)
		switch {
		case err == nil:
			all = append(all, l)
		case errors.Is(err, verbs.ErrNoRoute) || errors.Is(err, syscall.EAFNOSUPPORT):
			missing = append(missing, err)
		default:
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
	}
	if all == nil {
		return nil, errors.Join(missing...)
	}
	return all, nil
}

// Listener accepts connections of package rsock, see [Families].
type Listener struct {
	all   []net.Listener
	conns chan accepted
	done  chan struct{} // closed by Close
	close func()
}

type accepted struct {
	conn net.Conn
	err  error
}

// Listen listens on an address, whose host may be empty.
func Listen(ctx context.Context, lc *rsock.ListenConfig, addr string) (*Listener, error) {
	all, err := Families(addr, func(network, addr string) (net.Listener, error) { return lc.Listen(ctx, network, addr) })
	if err != nil {
		return nil, err
	}
	l := &Listener{all: all, conns: make(chan accepted), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	for _, one := range all {
		go l.accept(one)
	}
	return l, nil
}

func (l *Listener) accept(from net.Listener) {
	for {
		conn, err := from.Accept()
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.done:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

// Accept waits for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close stops listening.
func (l *Listener) Close() error {
	l.close()
	var errs []error
	for _, one := range l.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Addr returns the first address, see String.
func (l *Listener) Addr() net.Addr { return l.all[0].Addr() }

// String returns the addresses: "0.0.0.0:7471 and [::]:7471".
func (l *Listener) String() string {
	var all []string
	for _, one := range l.all {
		all = append(all, one.Addr().String())
	}
	return strings.Join(all, " and ")
}

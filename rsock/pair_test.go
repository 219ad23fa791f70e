//go:build linux

package rsock_test

import (
	"net"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// pair makes a connection and returns the ends of Dial and of Accept.
func pair(device string, opt rsock.Options) (c1, c2 *rsock.Conn, err error) {
	l, err := (&rsock.ListenConfig{Options: opt}).Listen(ctx, "rdma", net.JoinHostPort(labtest.AddrOf(device), "0"))
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	a, err := (&rsock.Dialer{Options: opt}).Dial("rdma", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	b, err := l.Accept()
	if err != nil {
		a.Close()
		return nil, nil, err
	}
	return a.(*rsock.Conn), b.(*rsock.Conn), nil
}

package rsock

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestConn runs the Go project's tests of net.Conn on both ends of a connection.
func TestConn(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for name, turn := range map[string]bool{"dialed": false, "accepted": true} {
			t.Run(name, func(t *testing.T) {
				nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
					l, err := rsock.Listen("rdma", labtest.AddrOf(device)+":0")
					if err != nil {
						return nil, nil, nil, err
					}
					defer l.Close()
					a, err := rsock.Dial("rdma", l.Addr().String())
					if err != nil {
						return nil, nil, nil, err
					}
					b, err := l.Accept()
					if err != nil {
						a.Close()
						return nil, nil, nil, err
					}
					stop = func() { a.Close(); b.Close() }
					if turn {
						return b, a, stop, nil
					}
					return a, b, stop, nil
				})
			})
		}
	})
}

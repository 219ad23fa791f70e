//go:build linux

package rsock_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestAcceptOrder dials connections one after the other while handshakes of others are under way.
// Accept returns them in this order.
func TestAcceptOrder(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Made(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		opt := rsock.Options{ReadBuffer: 4096, WriteBuffer: 4096}
		dial := func(name byte) net.Conn {
			c, err := (&rsock.Dialer{Options: opt}).Dial("rdma", l.Addr().String())
			if err == nil {
				_, err = c.Write([]byte{name})
			}
			if err != nil {
				t.Error(err)
			}
			return c
		}
		const each = 10
		for range labtest.Rounds(4, 2) {
			var dialers sync.WaitGroup
			for i := range 4 {
				dialers.Go(func() {
					for j := range each {
						if c := dial(byte(i*each + j)); c != nil {
							defer c.Close()
						}
					}
				})
			}
			var next [4]int
			for range 4 * each {
				c := labtest.Must(l.Accept())(t)
				defer c.Close()
				var name [1]byte
				labtest.Must(io.ReadFull(c, name[:]))(t)
				i, j := int(name[0])/each, int(name[0])%each
				if j != next[i] {
					t.Errorf("connection %d of dialer %d is accepted in place of its %d", j, i, next[i])
				}
				next[i] = j + 1
			}
			dialers.Wait()
		}
	})
}

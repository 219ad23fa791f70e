package verbstest_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestReason ends a connection in each way, with a receive posted and a goroutine that waits for
// it: Reason tells it why, though the receive is flushed before the end is known.
func TestReason(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, network *verbstest.Network, client, server *cm.Endpoint)
		want error
	}{
		{"peer disconnects", func(_ *testing.T, _ *verbstest.Network, client, _ *cm.Endpoint) { client.Disconnect() }, verbs.ErrDisconnected},
		{"this side disconnects", func(_ *testing.T, _ *verbstest.Network, _, server *cm.Endpoint) { server.Disconnect() }, verbs.ErrClosed},
		{"device is removed", func(_ *testing.T, n *verbstest.Network, _, _ *cm.Endpoint) {
			n.Remove(netip.MustParseAddr("10.0.0.2"))
		}, verbs.ErrDeviceRemoved},
		{"QP fails by itself", func(_ *testing.T, _ *verbstest.Network, _, server *cm.Endpoint) {
			server.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := verbstest.NewNetwork(verbstest.Options{})
				client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
				l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ended, accepted := make(chan error, 1), make(chan *cm.Endpoint, 1)
				var mr *uverbs.MR
				go func() {
					req, err := l.Accept(t.Context())
					if err != nil {
						ended <- err
						return
					}
					e, err := req.Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 1)})
					accepted <- e
					if err != nil {
						ended <- err
						return
					}
					_, err = e.RecvCQ.Next(t.Context())
					ended <- e.Reason(t.Context(), err)
				}()
				c, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				e := <-accepted
				if e == nil {
					t.Fatal(<-ended)
				}
				defer e.Close()
				begin := time.Now()
				test.end(t, network, c, e)
				err = <-ended
				if !errors.Is(err, verbs.WCFlushErr) && test.want != verbs.ErrDeviceRemoved || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("%v", err)
				}
				if test.want == nil && (errors.Is(err, verbs.ErrDisconnected) || time.Since(begin) > 2*time.Second) {
					t.Errorf("after %v: %v", time.Since(begin), err)
				}
				if err := e.Reason(t.Context(), nil); err != nil {
					t.Errorf("no error became %v", err)
				}
				// With a context that has ended it says what is known, and does not wait.
				over, cancel := context.WithCancel(t.Context())
				cancel()
				begin = time.Now()
				if err := e.Reason(over, verbs.WCFlushErr); !errors.Is(err, verbs.WCFlushErr) || e.Err() != nil && !errors.Is(err, e.Err()) || time.Since(begin) > 0 {
					t.Errorf("at once: %v after %v", err, time.Since(begin))
				}
			})
		})
	}
}

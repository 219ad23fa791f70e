package verbstest_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// TestRetryCount: with fewer repetitions the layers notice sooner that a peer's machine has died.
func TestRetryCount(t *testing.T) {
	for name, send := range map[string]func(t *testing.T, n *verbstest.Network, retries int) error{
		"rsock": func(t *testing.T, n *verbstest.Network, retries int) error {
			lc := rsock.ListenConfig{Transport: verbstest.NewHost(t, n, "10.0.0.2")}
			l, err := lc.Listen(t.Context(), "rdma", "10.0.0.2:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			d := rsock.Dialer{Transport: verbstest.NewHost(t, n, "10.0.0.1"), Options: rsock.Options{RetryCount: retries}}
			c, err := d.DialContext(t.Context(), "rdma", "10.0.0.2:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			n.Remove(netip.MustParseAddr("10.0.0.2"))
			c.Write([]byte("x"))
			_, err = c.Read(make([]byte, 1))
			return err
		},
		"rmsg": func(t *testing.T, n *verbstest.Network, retries int) error {
			lc := rmsg.ListenConfig{Options: rmsg.Options{Transport: verbstest.NewHost(t, n, "10.0.0.2")}}
			l, err := lc.Listen(t.Context(), "10.0.0.2:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go l.Accept(t.Context())
			d := rmsg.Dialer{Options: rmsg.Options{Transport: verbstest.NewHost(t, n, "10.0.0.1"), RetryCount: retries}}
			c, err := d.Dial(t.Context(), "10.0.0.2:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			n.Remove(netip.MustParseAddr("10.0.0.2"))
			c.Send(t.Context(), []byte("x"))
			_, err = c.Recv(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var took []time.Duration
			for _, retries := range []int{1, 0} { // 0 is the default, 6
				synctest.Test(t, func(t *testing.T) {
					begin := time.Now()
					if err := send(t, verbstest.NewNetwork(verbstest.Options{}), retries); err == nil {
						t.Error("the peer is gone, and nothing fails")
					}
					took = append(took, time.Since(begin))
				})
			}
			if 2*took[0] > took[1] {
				t.Errorf("noticed after %v with one repetition, after %v with six", took[0], took[1])
			}
			t.Log(took)
		})
	}
	for _, err := range []error{
		func() error {
			_, err := (&rsock.ListenConfig{Options: rsock.Options{RetryCount: 8}}).Listen(t.Context(), "rdma", "10.0.0.2:7471")
			return err
		}(),
		func() error { _, err := rmsg.NewLoop(rmsg.Options{RetryCount: 8}); return err }(),
	} {
		if !errors.Is(err, verbs.ErrRange) {
			t.Errorf("8 repetitions: %v", err)
		}
	}
}

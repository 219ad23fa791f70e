package verbstest_test

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// The peer dies in the middle of a stream.
func TestPeerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l, err := (&rsock.ListenConfig{Transport: server}).Listen(t.Context(), "rdma", "10.0.0.2:7471")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(io.Discard, c)
				c.Close()
			}
		}()
		c, err := (&rsock.Dialer{Transport: client}).Dial("rdma", "10.0.0.2:7471")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for sent := 0; err == nil; sent++ {
			if sent == 100 {
				network.Remove(netip.MustParseAddr("10.0.0.2"))
			}
			_, err = c.Write(make([]byte, 1000))
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("write to a dead peer: %v", err)
		}
	})
}

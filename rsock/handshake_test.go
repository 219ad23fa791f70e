package rsock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/verbstest"
)

// TestManyHandshakes accepts a connection while the listener makes as many others as it does at a
// time, for longer than a handshake's time: that begins when it is the connection's turn.
func TestManyHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		ln, err := (&ListenConfig{Transport: server, HandshakeTimeout: time.Second}).Listen(t.Context(), "rdma", "10.0.0.2:7471")
		if err != nil {
			t.Fatal(err)
		}
		l := ln.(*Listener)
		defer l.Close()
		for range maxMaking {
			l.making <- struct{}{}
		}
		dialed := make(chan error, 1)
		go func() {
			c, err := (&Dialer{Transport: client}).Dial("rdma", "10.0.0.2:7471")
			if err == nil {
				c.Close()
			}
			dialed <- err
		}()
		time.Sleep(5 * time.Second)
		if n := l.Stats().Handshakes; n != 1 || len(dialed) != 0 {
			t.Errorf("%d handshakes while others are made", n)
		}
		<-l.making
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := <-dialed; err != nil {
			t.Error(err)
		}
		if n := len(l.making); n != maxMaking-1 {
			t.Errorf("%d connections are being made", n)
		}
	})
}

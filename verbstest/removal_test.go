package verbstest_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestRemoval removes a device under programs that use it in each way: all of them see it, and can
// close their objects.
func TestRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		local, other := netip.MustParseAddr("10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		device, err := soft.New(soft.Options{Network: network, Host: "removed", Addrs: []netip.Addr{local, netip.MustParseAddr("fd00::1")}})
		if err != nil {
			t.Fatal(err)
		}
		defer device.Close()
		transport := &cm.Transport{Host: device}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ended := map[string]<-chan error{}
		begin := func(name string, wait func() error) {
			end := make(chan error, 1)
			go func() { end <- wait() }()
			ended[name] = end
		}

		// A connection, whose peer is the other device, and a stream, both idle.
		l, err := (&cm.ListenConfig{Transport: other}).Listen(t.Context(), "10.0.0.2:1")
		must(err)
		defer l.Close()
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			r, err := l.Accept(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			e, err := r.Accept(t.Context(), cm.Options{})
			if err != nil {
				t.Error(err)
			}
			accepted <- e
		}()
		e, err := (&cm.Dialer{Transport: transport}).Dial(t.Context(), "10.0.0.2:1")
		must(err)
		peer := <-accepted
		streams, err := (&rsock.ListenConfig{Transport: other}).Listen(t.Context(), "rdma", "10.0.0.2:2")
		must(err)
		defer streams.Close()
		stream, err := (&rsock.Dialer{Transport: transport}).Dial("rdma", "10.0.0.2:2")
		must(err)
		remote, err := streams.Accept()
		must(err)

		begin("connection", func() error { <-e.Done(); return e.Err() })
		begin("completion", func() error { _, err := e.RecvCQ.Next(t.Context()); return err })
		begin("stream", func() error { _, err := io.ReadFull(stream, make([]byte, 1)); return err })

		// Waits of a context, of an ID, and of listeners at the device's address.
		ctx, err := uverbs.Open(device.Name())
		must(err)
		begin("asynchronous events", func() error {
			for event, err := range ctx.AsyncEvents(t.Context()) {
				if err != nil || event.Type == verbs.EventDeviceFatal {
					return err
				}
				t.Log("event before the last one:", event.Type)
			}
			return errors.New("no device fatal error")
		})
		ch, err := transport.NewChannel()
		must(err)
		id, err := ch.NewID(cm.PortSpaceTCP)
		must(err)
		must(id.Bind(netip.AddrPortFrom(local, 4)))
		begin("ID", func() error {
			event, err := ch.Next(t.Context())
			if err == nil && event.Type != cm.DeviceRemoval {
				t.Errorf("event %v of the ID", event.Type)
			}
			return err
		})
		bound, err := (&cm.ListenConfig{Transport: transport}).Listen(t.Context(), "10.0.0.1:3")
		must(err)
		begin("listener", func() error { _, err := bound.Accept(t.Context()); return err })
		synctest.Wait()
		for name, end := range ended {
			select {
			case err := <-end:
				t.Errorf("%s ended before the removal: %v", name, err)
			default:
			}
		}

		if !network.Remove(local) {
			t.Error("no device was removed")
		}
		for name, end := range ended {
			select {
			case err := <-end:
				t.Logf("%s: %v", name, err)
				if (err == nil) != (name == "ID" || name == "asynchronous events") {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(time.Second):
				t.Errorf("%s has not ended", name)
			}
		}
		if _, err := ctx.QueryPort(1); !errors.Is(err, syscall.EIO) {
			t.Errorf("query port: %v", err)
		}
		if _, err := uverbs.Find(device.Name()); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("found the removed device: %v", err)
		}
		for _, c := range []io.Closer{e, stream, ctx, id, ch, bound, transport} {
			if err := c.Close(); err != nil {
				t.Errorf("close %T: %v", c, err)
			}
		}

		// The peers get no answer.
		for _, c := range []io.Closer{peer, remote} {
			c.Close()
		}
		// The address can be used again.
		again, err := soft.New(soft.Options{Network: network, Host: "again", Addrs: device.Addrs()})
		must(err)
		must(again.Close())
	})
}

// TestRemovalByFilter removes a device while it sends.
func TestRemovalByFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		sends := 0
		network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
			if p.Kind == verbstest.Send && p.Last {
				if sends++; sends == 5 {
					network.Remove(p.Src.Addr())
				}
			}
			return verbstest.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		serve(t, ctx, server, 100)
		begin := time.Now()
		if sent, err := transfer(t, ctx, client, 100, 10); sent != 4 || err == nil || time.Since(begin) > time.Second {
			t.Errorf("sent %d messages in %v: %v", sent, time.Since(begin), err)
		}
	})
}

// TestRemovalEndsListeners removes the device of a listener of each package: Accept says so.
func TestRemovalEndsListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		transport := verbstest.NewHost(t, network, "10.0.0.1")
		streams, err := (&rsock.ListenConfig{Transport: transport}).Listen(t.Context(), "rdma", "10.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer streams.Close()
		messages, err := (&rmsg.ListenConfig{Options: rmsg.Options{Transport: transport}}).Listen(t.Context(), "10.0.0.1:2")
		if err != nil {
			t.Fatal(err)
		}
		defer messages.Close()
		regions, err := (&rconn.ListenConfig{Transport: transport}).Listen(t.Context(), "10.0.0.1:3")
		if err != nil {
			t.Fatal(err)
		}
		defer regions.Close()
		network.Remove(netip.MustParseAddr("10.0.0.1"))
		for name, accept := range map[string]func() error{
			"rsock": func() error { _, err := streams.Accept(); return err },
			"rmsg":  func() error { _, err := messages.Accept(t.Context()); return err },
			"rconn": func() error { _, err := regions.Accept(t.Context()); return err },
		} {
			for range 2 {
				if err := accept(); !errors.Is(err, verbs.ErrDeviceRemoved) || errors.Is(err, verbs.ErrClosed) {
					t.Errorf("%s: %v", name, err)
				} else {
					t.Logf("%s: %v", name, err)
				}
			}
		}
	})
}

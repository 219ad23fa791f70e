//go:build linux

package cm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// connectTransports connects an endpoint of dial with one of listen.
func connectTransports(t *testing.T, device string, dial, listen *cm.Transport) (client, server *cm.Endpoint) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	l := labtest.Must((&cm.ListenConfig{Transport: listen}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	accepted := make(chan *cm.Endpoint, 1)
	go func() {
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		e, err := r.Accept(ctx, cm.Options{SharePD: true})
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- e
	}()
	d := cm.Dialer{Options: cm.Options{SharePD: true}, Transport: dial}
	client = labtest.Must(d.Dial(ctx, l.Addr().String()))(t)
	server, ok := <-accepted
	if !ok {
		t.FailNow()
	}
	return client, server
}

func expectStats(t *testing.T, tr *cm.Transport, want cm.TransportStats) {
	t.Helper()
	got := tr.Stats()
	if got.Leaving = 0; got != want { // peers answer soon
		t.Errorf("the transport has %+v, want %+v", got, want)
	}
}

// TestTransport uses two transports in one process, which share nothing, and closes one of
// them while it is in use and when it is not.
func TestTransport(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		dialing, listening := &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: -1}, &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: -1}
		client, server := connectTransports(t, device, dialing, listening)
		for _, tr := range []*cm.Transport{dialing, listening} {
			expectStats(t, tr, cm.TransportStats{Channels: 1, IDs: 1, Devices: 1, Endpoints: 1})
		}
		if client.PD == server.PD || client.PD.Context() == server.PD.Context() {
			t.Error("the transports share a device")
		}
		contexts := "kernel ctx of " + device
		if n := labtest.Inventory(t)[contexts] - before[contexts]; n != 2 {
			t.Errorf("the kernel has %d contexts more, want 2", n)
		}
		if err := dialing.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("close with an endpoint: %v", err)
		}
		client.Close()
		mr := labtest.Must(server.AllocMR(64, 0))(t)
		expectStats(t, dialing, cm.TransportStats{Channels: 1, Devices: 1})

		// Calls on the closed transport fail; the other transport still works.
		for range 2 {
			if err := dialing.Close(); err != nil {
				t.Error(err)
			}
		}
		expectStats(t, dialing, cm.TransportStats{})
		if _, err := (&cm.ListenConfig{Transport: dialing}).Listen(t.Context(), labtest.AddrOf(device)+":0"); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("listen on a closed transport: %v", err)
		}
		if _, err := (&cm.Dialer{Transport: dialing}).Dial(t.Context(), labtest.AddrOf(device)+":1"); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("dial on a closed transport: %v", err)
		}
		if mr.Bytes() == nil || server.PD.Context().Close() == nil {
			t.Error("the other transport's device is closed")
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		client, server = connectTransports(t, device, nil, listening)
		client.Close()
		server.Close()
		if err := listening.Close(); err != nil {
			t.Error(err)
		}
		labtest.CheckLeaks(t, before)
	})
}

// TestTransportInUse closes a transport while it has a listener, a request, and an object of
// the program on one of its devices.
func TestTransportInUse(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		tr := &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: -1}
		inUse := func(what string, want cm.TransportStats) {
			t.Helper()
			tr.CloseIdle()
			expectStats(t, tr, want)
			if err := tr.Close(); !errors.Is(err, verbs.ErrInUse) {
				t.Errorf("close with %s: %v", what, err)
			}
			expectStats(t, tr, want)
		}
		l := labtest.Must((&cm.ListenConfig{Transport: tr}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		inUse("a listener", cm.TransportStats{Channels: 1, IDs: 1})
		dialed := make(chan error, 1)
		go func() {
			_, err := cm.Dial(ctx, l.Addr().String())
			dialed <- err
		}()
		r := labtest.Must(l.Accept(ctx))(t)
		l.Close()
		inUse("a request", cm.TransportStats{Channels: 1, IDs: 1})
		if err := r.Reject(nil); err != nil {
			t.Error(err)
		}
		if err := <-dialed; err == nil {
			t.Error("a rejected dial succeeded")
		}
		client, server := connectTransports(t, device, tr, tr)
		pd := labtest.Must(client.PD.Context().AllocPD())(t)
		inUse("two endpoints", cm.TransportStats{Channels: 1, IDs: 2, Devices: 1, Endpoints: 2})
		client.Close()
		server.Close()
		inUse("a PD", cm.TransportStats{Devices: 1})
		if err := errors.Join(pd.Close(), tr.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestIdleTimeout checks that a transport closes what is not in use after IdleTimeout, and
// not before.
func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	labtest.Each(t, func(t *testing.T, device string) {
		t.Parallel()
		const timeout = 2 * time.Second
		tr := &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: timeout}
		for range 2 {
			client, server := connectTransports(t, device, tr, tr)
			client.Close()
			closing := time.Now()
			server.Close()
			expectStats(t, tr, cm.TransportStats{Channels: 1, Devices: 1})
			labtest.Until(t, "the transport to be idle", func() bool { return tr.Stats() == cm.TransportStats{} })
			if took := time.Since(closing); took < timeout {
				t.Errorf("closed after %v", took)
			}
		}
		// An object of the program delays it.
		client, server := connectTransports(t, device, tr, tr)
		pd := labtest.Must(client.PD.Context().AllocPD())(t)
		client.Close()
		server.Close()
		time.Sleep(2 * timeout)
		if n := tr.Stats().Devices; n != 1 {
			t.Errorf("%d devices are open with a PD of the program's, want 1", n)
		}
		pd.Close()
		labtest.Until(t, "the transport to be idle", func() bool { return tr.Stats() == cm.TransportStats{} })
	})
}

// TestChannelTransport makes endpoints of a channel with its transport, until that is closed.
func TestChannelTransport(t *testing.T) {
	labtest.Require(t)
	tr := &cm.Transport{Host: cm.DefaultTransport().Host}
	ch, _, addr := newChannel(t, tr, labtest.RoCE)
	ctx := within(t, 20*time.Second)
	connect := func() (ends []*cm.Endpoint, err error) {
		labtest.Close(t, resolving(t, ch, addr))
		for err == nil && len(ends) < 2 {
			ev := labtest.Must(ch.Next(ctx))(t)
			var e *cm.Endpoint
			switch ev.Type {
			case cm.AddrResolved:
				err = ev.ID.ResolveRoute(time.Second)
			case cm.RouteResolved:
				e, err = ch.Connect(ev, cm.Options{})
			case cm.ConnectRequest:
				e, err = ch.Accept(ev, cm.Options{})
			}
			if e != nil {
				ends = append(ends, e)
			}
		}
		return ends, err
	}
	ends, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	expectStats(t, tr, cm.TransportStats{Devices: 1, Endpoints: 2})
	for _, e := range ends {
		e.Close()
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if _, err := connect(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("connect by a closed transport: %v", err)
	}
}

//go:build linux

package ping

import (
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
)

// TestPing runs a persistent server with two clients, of both address families. tests/interop runs
// them with rping.
func TestPing(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		serving, stop := context.WithCancel(t.Context())
		server := Cmd{Server: true, Persistent: true, Size: MinSize, Port: 7174}
		served := make(chan error, 1)
		go func() { served <- server.Run(serving) }()
		defer stop()
		for i, addr := range labtest.AddrsOf(t, device) {
			size := []int{MinSize, maxSize}[i]
			client := Cmd{Client: true, Addr: addr, Port: 7174, Count: 5, Size: cli.Size(size), Check: true, JSON: true}
			var err error
			out := labtest.Output(t, func() {
				ctx := labtest.Within(t, 30*time.Second)
				for err = client.Run(ctx); errors.Is(err, syscall.ECONNREFUSED) && len(served) == 0; err = client.Run(ctx) {
				}
			})
			var r result
			labtest.Check(t, err, json.Unmarshal([]byte(out), &r))
			if r.Count != 5 || r.Size != size || !r.Validated || r.Device != device {
				t.Errorf("%+v", r)
			}
		}
		stop()
		labtest.Check(t, <-served)
	})
}

// TestInterruptedServer interrupts a server for one client before that comes: it ends with success, as verbs says of
// all servers.
func TestInterruptedServer(t *testing.T) {
	labtest.Require(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- (&Cmd{Server: true, Size: MinSize, Port: 7175}).Run(ctx) }()
	labtest.UntilBlocked(t, 1, "(*Listener).Accept")
	stop()
	labtest.Check(t, <-served)
}

// TestTOS checks that a client sends its type of service, and that the server answers with it.
func TestTOS(t *testing.T) {
	labtest.Require(t)
	labtest.TOS(t, 104, "peer", func(peer *soft.Device, addr string) {
		addr, stop := serve(t, &cm.Transport{Host: peer}, addr)
		defer stop()
		client := Cmd{Client: true, Addr: addr, Count: 3, Size: MinSize, TOS: 104, JSON: true}
		labtest.Output(t, func() { labtest.Check(t, client.Run(labtest.Within(t, 30*time.Second))) })
	})
}

// serve starts a persistent server, and returns its address and what ends it.
func serve(t *testing.T, transport *cm.Transport, ip string) (addr string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := labtest.Must((&cm.ListenConfig{Transport: transport}).Listen(ctx, ip+":0"))(t)
	server, served := Cmd{Server: true, Persistent: true, Size: MinSize}, make(chan error, 1)
	go func() { served <- server.serveAll(ctx, l) }()
	return l.Addr().String(), func() {
		cancel()
		labtest.Check(t, <-served, l.Close())
		transport.CloseIdle()
	}
}

// TestTooManyClients checks that a server rejects the client that is one too many, and serves
// another when one has left.
func TestTooManyClients(t *testing.T) {
	labtest.Require(t)
	addr, stop := serve(t, cm.DefaultTransport(), labtest.Addr)
	defer stop()
	ctx := labtest.Within(t, time.Minute)
	dial := func() (*cm.Endpoint, error) { return (&cm.Dialer{Options: (&peer{}).options()}).Dial(ctx, addr) }
	var clients [maxClients]*cm.Endpoint
	for i := range clients {
		clients[i] = labtest.Made(dial())(t)
	}
	if e, err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("client %d: %v, %v", maxClients+1, e, err)
	}
	labtest.Check(t, clients[0].Close())
	labtest.Until(t, "a place for another", func() bool {
		e, err := dial()
		if err == nil {
			e.Close()
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
		return err == nil
	})
	for _, c := range clients[1:] {
		c.Close()
	}
}

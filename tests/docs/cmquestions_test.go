package docs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// questions are the questions of the page about librdmacm to the kernel. The error is the
// kernel's refusal.
var questions = map[string]func(*testing.T, string) error{
	"ECE":                 askECE,
	"ECE rejection":       askECERejection,
	"InfiniBand services": askService,
	"establishing":        askEstablish,
	"connections":         askConnect,
	"datagrams":           askDatagrams,
	"look-ups":            askLookup,
	"membership":          func(t *testing.T, device string) error { return askMembership(t, device, false) },
	"membership, sending": func(t *testing.T, device string) error { return askMembership(t, device, true) },
	"migration":           askMigration,
	"notification":        askNotify,
	"options":             askOptions,
	"path":                askPath,
	"rejection":           askReject,
	"user events":         askUserEvent,
}

// errNever reports a request that the kernel accepts and ignores.
var errNever = fmt.Errorf("the kernel makes nothing of it: %w", errors.ErrUnsupported)

func within(t *testing.T) context.Context {
	return labtest.Within(t, 20*time.Second)
}

// dial connects two endpoints.
func dial(t *testing.T, device string, space cm.PortSpace, setup func(*cm.Endpoint) error) (client, server *cm.Endpoint, err error) {
	ctx := within(t)
	l := labtest.Made((&cm.ListenConfig{PortSpace: space}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			server, err = r.Accept(ctx, cm.Options{Setup: setup})
		}
		accepted <- err
	}()
	client, err = (&cm.Dialer{PortSpace: space}).Dial(ctx, l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	labtest.Close(t, client)
	if err := <-accepted; err != nil {
		return nil, nil, err
	}
	labtest.Close(t, server)
	return client, server, nil
}

// askConnect sends a message over a connection and ends it.
func askConnect(t *testing.T, device string) error {
	client, server, err := dial(t, device, cm.PortSpaceTCP, func(e *cm.Endpoint) error {
		mr, err := e.AllocMR(100, verbs.AccessLocalWrite)
		if err == nil {
			_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 100)}})
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}); err != nil {
		return err
	}
	var wc [1]verbs.WC
	if _, err := server.RecvCQ.PollWait(within(t), wc[:]); err != nil || wc[0].Err() != nil || wc[0].ByteLen != 5 {
		t.Errorf("a message of %d bytes: %v, %v", wc[0].ByteLen, err, wc[0].Err())
	}
	client.Disconnect()
	select {
	case <-server.Done():
	case <-within(t).Done():
		t.Error("the server did not notice the disconnect")
	}
	return nil
}

func askDatagrams(t *testing.T, device string) error {
	_, _, err := dial(t, device, cm.PortSpaceUDP, nil)
	return err
}

func askLookup(t *testing.T, device string) error {
	p, err := cm.Lookup(within(t), labtest.AddrOf(device))
	if err == nil && p.Device.Name != device {
		t.Errorf("%s was found in place of %s", p.Device.Name, device)
	}
	return err
}

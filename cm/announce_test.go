//go:build linux

package cm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestAnnounce announces private data in Setup on both sides.
func TestAnnounce(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		announce := func(s string) cm.Options {
			return cm.Options{PrivateData: []byte("not this"), Setup: func(e *cm.Endpoint) error {
				if err := e.Announce(make([]byte, cm.MaxPrivateData+1)); !errors.Is(err, cm.ErrPrivateData) {
					t.Errorf("announcing too much: %v", err)
				}
				return e.Announce([]byte(s))
			}}
		}
		l := labtest.Must(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			defer close(accepted)
			r, err := l.Accept(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			e, err := r.Accept(t.Context(), announce("from the server"))
			if err != nil {
				t.Error(err)
				return
			}
			accepted <- e
		}()
		client := labtest.Made((&cm.Dialer{Options: announce("from the client")}).Dial(t.Context(), l.Addr().String()))(t)
		server := <-accepted
		if server == nil {
			return
		}
		labtest.Close(t, server)
		if !bytes.HasPrefix(client.PrivateData, []byte("from the server")) || !bytes.HasPrefix(server.PrivateData, []byte("from the client")) {
			t.Errorf("the client heard %q, the server %q", client.PrivateData, server.PrivateData)
		}
		for _, e := range []*cm.Endpoint{client, server} {
			if err := e.Announce(make([]byte, 300)); !errors.Is(err, syscall.EISCONN) {
				t.Errorf("announcing after Setup: %v", err)
			}
		}
	})
}

// TestAnnounceToGroup announces to a multicast group, which no private data reaches.
func TestAnnounceToGroup(t *testing.T) {
	labtest.Require(t)
	local := netip.AddrPortFrom(netip.MustParseAddr(labtest.AddrOf(labtest.RoCE)), 0)
	for name, opt := range map[string]cm.Options{
		"option":   {PrivateData: []byte("x")},
		"announce": {Setup: func(e *cm.Endpoint) error { return e.Announce([]byte("x")) }},
	} {
		e, err := (&cm.Dialer{Options: opt, LocalAddr: local}).Join(t.Context(), "239.1.2.3", false)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

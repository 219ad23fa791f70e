//go:build linux

package cm_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestECE offers extensions, which reach the peer except on iWARP.
func TestECE(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		offer, reason := verbs.ECE{VendorID: 0x1234, Options: 5}, 28
		client, request := labtest.Request(t, device, cm.ConnParam{ECE: offer})
		if labtest.IWARP(t, device) {
			offer, reason = verbs.ECE{}, -int(syscall.ECONNRESET)
		}
		if request.ECE != offer {
			t.Errorf("offer %+v in place of %+v", request.ECE, offer)
		}
		if err := request.NewID.Reject([]byte("plain only")); err != nil {
			t.Fatal(err)
		}
		e := labtest.Expect(t, client, cm.Rejected)
		if e.Status != reason || !strings.HasPrefix(string(e.PrivateData), "plain only") {
			t.Errorf("reason %d, private data %q", e.Status, e.PrivateData)
		}
	})
}

// TestRejectForShortage: a peer learns what the accepting process lacks that rejected its request.
func TestRejectForShortage(t *testing.T) {
	labtest.RequireBoth(t)
	for text, why := range map[string]error{
		"it lacks locked memory":     syscall.ENOMEM,
		"raise its vm.max_map_count": host.ErrMappings,
		"it has too many open files": syscall.EMFILE,
		"in its time":                context.DeadlineExceeded,
		"connection rejected":        errors.New("another reason"),
	} {
		t.Run(why.Error(), func(t *testing.T) { testRejectFor(t, why, text) })
	}
}

func testRejectFor(t *testing.T, why error, text string) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				_, err = r.Accept(ctx, cm.Options{Setup: func(*cm.Endpoint) error { return why }})
			}
			accepted <- err
		}()
		_, err := (&cm.Dialer{}).Dial(ctx, l.Addr().String())
		if !labtest.Rejected(t, device, err) || errors.Is(err, syscall.ECONNREFUSED) && !strings.Contains(err.Error(), text) {
			t.Errorf("dial: %v", err)
		}
		if err := <-accepted; !errors.Is(err, why) {
			t.Errorf("accept: %v", err)
		}
	})
}

// TestRejectLate does not confirm an acceptance: the peer learns that the listener has not waited
// any longer.
func TestRejectLate(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.IWARP(t, device) {
			return // nothing is confirmed
		}
		l := labtest.Made(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		waits, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(t.Context())
			if err == nil {
				_, err = r.Accept(waits, cm.Options{})
			}
			accepted <- err
		}()
		client := labtest.NewID(t, cm.PortSpaceTCP)
		labtest.Check(t, client.ResolveAddr(netip.AddrPort{}, l.Addr().AddrPort, time.Second))
		labtest.Expect(t, client, cm.AddrResolved)
		labtest.Check(t, client.ResolveRoute(time.Second))
		labtest.Expect(t, client, cm.RouteResolved)
		labtest.Check(t, client.Connect(cm.ConnParam{QPNum: labtest.InitQP(t, device, client).Num()}))
		labtest.Expect(t, client, cm.ConnectResponse)
		begin := time.Now()
		giveUp()
		labtest.Expect(t, client, cm.Rejected)
		if err := <-accepted; !errors.Is(err, context.Canceled) || time.Since(begin) > 20*time.Second {
			t.Errorf("accept: %v, after %v", err, time.Since(begin))
		}
	})
}

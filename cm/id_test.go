//go:build linux

package cm_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestOptions sets every option.
func TestOptions(t *testing.T) {
	labtest.RequireBoth(t)
	ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
	id := labtest.Made(ch.NewID(0))(t)
	any6 := netip.MustParseAddrPort("[::]:0")
	if err := errors.Join(id.SetTOS(32), id.SetReuseAddr(true), id.SetAFOnly(true), id.SetAckTimeout(15), id.Bind(any6)); err != nil {
		t.Error(err)
	}
	if err := id.SetPath(); err == nil {
		t.Error("an empty path was taken")
	}
	// Another ID may have the same port as long as neither listens.
	r := labtest.Must(id.Route())(t)
	other := labtest.Made(ch.NewID(0))(t)
	if err := errors.Join(other.SetReuseAddr(true), other.SetAFOnly(true), other.Bind(r.Local), other.Close(), id.Listen(1)); err != nil && !errors.Is(err, syscall.EAFNOSUPPORT) { // with an erdma (cma_listen_on_all)
		t.Error(err)
	}
}

// TestPath resolves a route and asks for its path.
func TestPath(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		id := labtest.NewID(t, 0)
		dst := netip.MustParseAddrPort(labtest.AddrOf(device) + ":9")
		labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, dst, time.Second))
		labtest.Expect(t, id, cm.AddrResolved)
		labtest.Check(t, id.ResolveRoute(time.Second))
		labtest.Expect(t, id, cm.RouteResolved)
		paths, err := id.PathRecords()
		local, remote, gerr := id.GIDs()
		if err := errors.Join(err, gerr); err != nil {
			t.Error(err)
		}
		if labtest.IWARP(t, device) {
			return
		}
		if len(paths) == 0 || paths[0].SGID != local || paths[0].DGID != remote || paths[0].MTU.Bytes() == 0 {
			t.Errorf("paths %+v between %v and %v", paths, local, remote)
		}
	})
}

func TestPortSpaces(t *testing.T) {
	labtest.RequireBoth(t)
	ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
	for _, space := range []cm.PortSpace{cm.PortSpaceTCP, cm.PortSpaceUDP, cm.PortSpaceIPoIB, cm.PortSpaceIB} {
		labtest.Close(t, labtest.Must(ch.NewID(space))(t))
	}
	if _, err := ch.NewID(0x7777); err == nil {
		t.Error("an absurd port space was taken")
	}
}

// TestClosedID checks that calls on a closed ID do not reach the ID for which the
// kernel reuses its handle.
func TestClosedID(t *testing.T) {
	labtest.RequireBoth(t)
	ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
	addr := netip.MustParseAddrPort(labtest.Addr + ":0")
	for range 20 {
		old := labtest.Must(ch.NewID(0))(t)
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		heir := labtest.Must(ch.NewID(0))(t)
		_, routeErr := old.Route()
		_, _, attrErr := old.InitQPAttr(verbs.StateInit)
		_, pathErr := old.PathRecords()
		for _, err := range []error{
			old.Bind(addr), old.Listen(1), old.Disconnect(), old.Establish(), old.Reject(nil), old.SetTOS(1),
			old.ResolveAddr(netip.AddrPort{}, addr, time.Second), old.ResolveRoute(time.Second),
			old.Join(netip.MustParseAddr("239.1.2.3"), false), routeErr, attrErr, pathErr,
		} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("on a closed ID: %v", err)
			}
		}
		if r := labtest.Must(heir.Route())(t); r.Local.Port() != 0 {
			t.Errorf("another ID was bound to %v", r.Local)
		}
		if err := errors.Join(heir.Bind(addr), heir.Close(), old.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestSleepers waits for the events of the only ID on a channel in one goroutine, which
// sleeps, and in two: each event wakes one of them.
func TestSleepers(t *testing.T) {
	labtest.Require(t)
	ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
	for i := range 20 {
		ctx := within(t, 10*time.Second)
		id := labtest.Must(ch.NewID(0))(t)
		events := make(chan error, 2)
		next := func() {
			_, err := ch.Next(ctx)
			events <- err
		}
		then := []func() error{id.Close}
		go next()
		labtest.UntilBlocked(t, 1, "(*Channel).Next")
		if i%2 > 0 {
			then = append([]func() error{func() error { return id.ResolveRoute(time.Second) }}, then...)
			go next()
		}
		if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(labtest.Addr+":9"), time.Second); err != nil {
			t.Fatal(err)
		}
		for _, then := range then {
			if err := errors.Join(<-events, then()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

package privileges

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestLoop changes credentials while the kernel holds events for a channel: resolved
// addresses and connection requests.
func TestLoop(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		ctx := within(t)
		loop := labtest.Made(cm.DefaultTransport().NewChannel())(t)
		l := labtest.Made(loop.NewID(0))(t)
		labtest.Check(t, errors.Join(l.Bind(netip.MustParseAddrPort(labtest.AddrOf(device)+":0")), l.Listen(0)))
		addr := labtest.Must(l.Route())(t).Local
		for i := range 4 {
			dialed := make(chan error, 1)
			go func() {
				e, err := (&cm.Dialer{}).Dial(ctx, addr.String())
				if err == nil {
					err = e.Close()
				}
				dialed <- err
			}()
			const ids = 5
			for range ids {
				id := labtest.Must(loop.NewID(0))(t)
				labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, addr, time.Second))
			}
			time.Sleep(100 * time.Millisecond) // until some or all events have arrived
			switch i {
			case 1:
				dropPrivileges(t)
			case 2, 3:
				setCredentials(t)
			}
			connectAll(ctx, t, loop, 2*ids+1)
			if err := <-dialed; err != nil {
				t.Error(err)
			}
		}
	})
}

// nextOf returns a channel's next event, for which it waits with poll(2) or in Next.
func nextOf(ctx context.Context, loop *cm.Channel, polls bool) (cm.Event, error) {
	for polls {
		ev, ok, err := loop.TryNext()
		if ok || err != nil {
			return ev, err
		}
		unix.Poll([]unix.PollFd{{Fd: int32(loop.FD()), Events: unix.POLLIN}}, 1000)
		if err := ctx.Err(); err != nil {
			return ev, err
		}
	}
	return loop.Next(ctx)
}

// connectAll connects and accepts until ends endpoints have been closed.
func connectAll(ctx context.Context, t *testing.T, loop *cm.Channel, ends int) {
	t.Helper()
	for gone, polls := 0, false; gone < ends; polls = !polls {
		ev, err := nextOf(ctx, loop, polls)
		if err != nil {
			t.Fatalf("%d of %d have gone: %v", gone, ends, err)
		}
		switch ev.Type {
		case cm.AddrResolved:
			ev.ID.Tag = "dialed"
			err = ev.ID.ResolveRoute(time.Second)
		case cm.RouteResolved:
			_, err = loop.Connect(ev, cm.Options{})
		case cm.ConnectRequest:
			_, err = loop.Accept(ev, cm.Options{})
		case cm.Established:
			if ev.ID.Tag != nil {
				gone++
				err = ev.Endpoint.Close()
			}
		case cm.Disconnected:
			gone++
			err = ev.Endpoint.Close()
		default:
			err = ev.Err()
		}
		if err != nil {
			t.Fatalf("%v: %v", ev.Type, err)
		}
	}
}

// TestChannel changes credentials while a channel has IDs in all states.
func TestChannel(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		ctx := within(t)
		ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
		addr := netip.MustParseAddrPort(labtest.AddrOf(device) + ":9")
		resolve := func(id *cm.ID) {
			t.Helper()
			labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, addr, time.Second))
		}
		expect := func(id *cm.ID, want cm.EventType) {
			t.Helper()
			if e, err := ch.Next(ctx); err != nil || e.ID != id || e.Type != want {
				t.Fatal(e.Type, err)
			}
		}
		group := netip.MustParseAddr("239.1.2.3")
		var member *cm.ID
		join := func() {
			labtest.Check(t, member.Join(group, false))
			expect(member, cm.MulticastJoin)
		}
		if device == labtest.RXE {
			member = labtest.Must(ch.NewID(cm.PortSpaceUDP))(t)
			resolve(member)
			expect(member, cm.AddrResolved)
			join()
		}
		fresh := labtest.Must(ch.NewID(0))(t)
		resolved := labtest.Must(ch.NewID(0))(t)
		resolve(resolved)
		expect(resolved, cm.AddrResolved)
		resolving := labtest.Must(ch.NewID(0))(t)
		resolve(resolving)
		dropPrivileges(t)
		for i := range 3 {
			resolve(fresh)
			if i == 0 {
				expect(resolving, cm.AddrResolved)
			}
			expect(fresh, cm.AddrResolved)
			labtest.Check(t, fresh.ResolveRoute(time.Second))
			setCredentials(t)
			expect(fresh, cm.RouteResolved)
			if err := fresh.Close(); err != nil {
				t.Error(err)
			}
			fresh = labtest.Must(ch.NewID(0))(t)
			if member != nil {
				labtest.Check(t, member.Leave(group))
				join()
			}
		}
		for _, id := range []*cm.ID{fresh, resolving, resolved, member} {
			if id != nil {
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

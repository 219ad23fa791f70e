package docs

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func newID(t *testing.T, space cm.PortSpace) *cm.ID {
	t.Helper()
	ch := labtest.Made(cm.NewChannel())(t)
	id := labtest.Made(ch.NewIDIn(space))(t)
	return id
}

func askMembership(t *testing.T, device string, sendOnly bool) error {
	id := newID(t, cm.PortSpaceUDP)
	labtest.Check(t, id.Bind(netip.MustParseAddrPort(labtest.AddrOf(device)+":0")))
	g, err := id.Join(within(t), netip.MustParseAddr("239.1.2.3"), sendOnly)
	if err == nil {
		err = g.Leave()
	}
	return err
}

func askMigration(t *testing.T, device string) error {
	to := labtest.Made(cm.NewChannel())(t)
	id := newID(t, cm.PortSpaceTCP)
	return errors.Join(id.Migrate(to), id.Close())
}

func askOptions(t *testing.T, device string) error {
	id := newID(t, cm.PortSpaceTCP)
	return errors.Join(id.SetTOS(32), id.SetReuseAddr(true), id.SetAFOnly(true), id.SetAckTimeout(15))
}

// askPath sets the path of an ID instead of resolving it.
func askPath(t *testing.T, device string) error {
	id := newID(t, cm.PortSpaceTCP)
	dst := netip.MustParseAddrPort(labtest.AddrOf(device) + ":9")
	labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, dst, time.Second))
	labtest.Expect(t, id, cm.AddrResolved)
	record := cm.PathRecord{Flags: cm.PathGMP | cm.PathPrimary | cm.PathBidirectional}
	if err := id.SetPath(record); err != nil {
		return err
	}
	labtest.Expect(t, id, cm.RouteResolved)
	return nil
}

func askUserEvent(t *testing.T, device string) error {
	id := newID(t, cm.PortSpaceTCP)
	if err := id.WriteEvent(7, 8); err != nil {
		return err
	}
	if e := labtest.Expect(t, id, cm.User); e.Status != 7 || e.Arg != 8 {
		t.Errorf("%+v", e)
	}
	return nil
}

// askECE offers extensions with a connection request.
func askECE(t *testing.T, device string) error {
	offer := cm.ECE{VendorID: 0x1234, Options: 5}
	if _, request := labtest.Request(t, device, cm.ConnParam{ECE: offer}); request.ECE != offer {
		return errNever
	}
	return nil
}

// askReject rejects a request.
func askReject(t *testing.T, device string) error {
	client, request := labtest.Request(t, device, cm.ConnParam{})
	if err := request.NewID.Reject(nil); err != nil {
		return err
	}
	labtest.Expect(t, client, cm.Rejected)
	return nil
}

// askECERejection rejects a request because of its extensions.
func askECERejection(t *testing.T, device string) error {
	client, request := labtest.Request(t, device, cm.ConnParam{})
	if err := request.NewID.RejectECE(nil); err != nil {
		return err
	}
	const vendorOption = 35 // IBTA table 106
	if e := labtest.Expect(t, client, cm.Rejected); e.Status != vendorOption {
		return errNever
	}
	return nil
}

// accepted accepts a request, and returns both sides and the event that the client receives.
func accepted(t *testing.T, device string) (client, server *cm.ID, answer cm.Event) {
	t.Helper()
	client, request := labtest.Request(t, device, cm.ConnParam{})
	server = request.NewID
	labtest.Check(t, server.Accept(cm.ConnParam{QPNum: labtest.InitQP(t, device, server).Num()}))
	answer, err := client.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return client, server, answer
}

// askEstablish confirms the peer's response.
func askEstablish(t *testing.T, device string) error {
	client, server, answer := accepted(t, device)
	if answer.Type == cm.Established {
		return errNever
	}
	if err := client.Establish(); err != nil {
		return err
	}
	labtest.Expect(t, server, cm.Established)
	return nil
}

// askNotify reports that the connection is established before the peer does.
func askNotify(t *testing.T, device string) error {
	_, server, _ := accepted(t, device)
	if err := server.Notify(verbs.EventCommEst); err != nil {
		return err
	}
	labtest.Expect(t, server, cm.Established)
	return nil
}

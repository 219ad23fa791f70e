//go:build linux

package labtest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Request makes an ID request a connection, with IDs and a QP alone. It returns the ID and the listener's
// event, whose NewID is the server's ID.
func Request(t testing.TB, device string, p cm.ConnParam) (client *cm.ID, request cm.Event) {
	t.Helper()
	listener := NewID(t, cm.PortSpaceTCP)
	Check(t, listener.Bind(netip.MustParseAddrPort(AddrOf(device)+":0")))
	Check(t, listener.Listen(1))
	client = NewID(t, cm.PortSpaceTCP)
	Check(t, client.ResolveAddr(netip.AddrPort{}, Must(listener.Route())(t).Local, time.Second))
	Expect(t, client, cm.AddrResolved)
	Check(t, client.ResolveRoute(time.Second))
	Expect(t, client, cm.RouteResolved)
	p.QPNum = InitQP(t, device, client).Num()
	Check(t, client.Connect(p))
	request = Expect(t, listener, cm.ConnectRequest)
	Close(t, request.NewID)
	return client, request
}

// InitQP makes a QP and moves it to INIT with the attributes from an ID.
func InitQP(t testing.TB, device string, id *cm.ID) *uverbs.QP {
	t.Helper()
	pd := Made(OpenDevice(t, device).AllocPD())(t)
	qp := Made(pd.CreateQP(uverbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
	attr, mask, err := id.InitQPAttr(verbs.StateInit)
	Check(t, err)
	Check(t, qp.Modify(attr, mask))
	return qp
}

// NewID makes an ID on a channel of its own.
func NewID(t testing.TB, space cm.PortSpace) *cm.ID {
	t.Helper()
	return Made(Made(cm.DefaultTransport().NewChannel())(t).NewID(space))(t)
}

// Expect waits for the next event of an ID's channel, which must be the ID's, and of a type.
func Expect(t testing.TB, id *cm.ID, want cm.EventType) cm.Event {
	t.Helper()
	e, err := id.Channel().Next(Within(t, 20*time.Second))
	if err != nil || e.ID != id || e.Type != want {
		t.Fatalf("event %v (status %d) of ID %p, %v, want %v of %p", e.Type, e.Status, e.ID, err, want, id)
	}
	return e
}

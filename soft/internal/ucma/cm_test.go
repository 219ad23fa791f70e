package ucma_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/soft/internal/ibcm"
	"github.com/goverbs/verbs/soft/internal/ucma"
)

// wire is a device whose datagrams to its own addresses arrive at once.
type wire struct {
	addrs  []netip.Addr
	device *ucma.Device
}

func (*wire) Acknowledge(uint32) {}

func (w *wire) SendMAD(i int, dst netip.Addr, _ uint8, mad []byte) error {
	if w.GIDIndex(dst) >= 0 {
		w.device.Receive(ibcm.Source{GIDIndex: w.GIDIndex(dst), Addr: w.addrs[i]}, mad)
	}
	return nil
}

func (w *wire) GIDIndex(a netip.Addr) int { return slices.Index(w.addrs, a) }

func (w *wire) GID(i int) (verbs.GID, bool) {
	if i < 0 || i >= len(w.addrs) {
		return verbs.GID{}, false
	}
	return w.addrs[i].As16(), true
}

func (w *wire) GIDs() (all []verbs.GIDEntry) {
	for i := range w.addrs {
		g, _ := w.GID(i)
		all = append(all, verbs.GIDEntry{Port: 1, Index: i, GID: g})
	}
	return all
}

func (w *wire) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{NodeGUID: verbs.GUID{7: 1}, LocalCAAckDelay: 15}
}

func (w *wire) PortAttr() verbs.PortAttr {
	return verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 5}
}

const node = host.Scheme + "rdma_cm of TestPackageCM"

type machine struct{}

func (machine) CM() string { return node }

// TestPackageCM uses package cm, which writes its commands to the file.
func TestPackageCM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := ucma.New(nil)
		w := &wire{addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}
		w.device = m.AddDevice(w, 7)
		host.Provide(node, func() (host.File, syscall.Errno) { return m.Open(), 0 })
		defer host.Provide(node, nil)
		transport := &cm.Transport{Host: machine{}}
		for _, addr := range []string{"10.0.0.1:7471", "[fd00::1]:7471"} {
			useID(t, transport, netip.MustParseAddrPort(addr))
		}
		useGroup(t, transport)
		w.device.Remove()
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newID(t *testing.T, tr *cm.Transport, space cm.PortSpace) *cm.ID {
	t.Helper()
	ch, err := tr.NewChannel()
	check(t, err)
	id, err := ch.NewID(space)
	check(t, err)
	return id
}

func expect(t *testing.T, id *cm.ID, want cm.EventType) cm.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	e, err := id.Channel().Next(ctx)
	if err != nil || e.ID != id || e.Type != want {
		t.Fatalf("%v, status %d, %v; want %v", e.Type, e.Status, err, want)
	}
	return e
}

// useID makes and ends a connection with IDs.
func useID(t *testing.T, tr *cm.Transport, addr netip.AddrPort) {
	t.Helper()
	l := newID(t, tr, cm.PortSpaceTCP)
	check(t, l.Bind(addr))
	check(t, l.Listen(0))
	other := newID(t, tr, cm.PortSpaceTCP)
	if err := other.Bind(addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	c := newID(t, tr, cm.PortSpaceTCP)
	check(t, c.SetTOS(0x20))
	check(t, c.SetAckTimeout(15))
	check(t, c.ResolveAddr(netip.AddrPort{}, addr, time.Second))
	expect(t, c, cm.AddrResolved)
	check(t, c.ResolveRoute(time.Second))
	expect(t, c, cm.RouteResolved)
	route, err := c.Route()
	if err != nil || route.Remote != addr || route.Local.Addr() != addr.Addr() || route.Index != 7 || route.Port != 1 || route.Device != (verbs.GUID{7: 1}) {
		t.Errorf("%+v, %v", route, err)
	}
	paths, err := c.PathRecords()
	if err != nil || len(paths) != 1 || paths[0].TrafficClass != 0x20 || paths[0].Lifetime != 14 || paths[0].MTU.Bytes() != 4096 || paths[0].SGID.Addr() != addr.Addr() {
		t.Errorf("%+v, %v", paths, err)
	}
	if err := c.Connect(cm.ConnParam{PrivateData: make([]byte, 57)}); !errors.Is(err, cm.ErrPrivateData) {
		t.Error(err)
	}
	check(t, c.Connect(cm.ConnParam{QPNum: 1, PrivateData: []byte("hello")}))
	e := expect(t, l, cm.ConnectRequest)
	if !strings.HasPrefix(string(e.PrivateData), "hello\x00") || e.QPNum != 1 {
		t.Errorf("%+v", e)
	}
	s := e.NewID
	check(t, s.Accept(cm.ConnParam{QPNum: 2, PrivateData: []byte("welcome")}))
	if e := expect(t, c, cm.ConnectResponse); !strings.HasPrefix(string(e.PrivateData), "welcome\x00") || e.QPNum != 2 {
		t.Errorf("%+v", e)
	}
	rts, mask, err := c.InitQPAttr(verbs.StateRTS)
	if err != nil || mask&verbs.MaskTimeout == 0 || rts.Timeout != 15 {
		t.Errorf("%+v, %v, %v", rts, mask, err)
	}
	check(t, c.Establish())
	expect(t, s, cm.Established)
	check(t, c.Disconnect())
	expect(t, s, cm.Disconnected)
	check(t, s.Disconnect())
	expect(t, c, cm.Disconnected)
	expect(t, s, cm.TimewaitExit)
	expect(t, c, cm.TimewaitExit)

	refused := newID(t, tr, cm.PortSpaceTCP)
	check(t, refused.ResolveAddr(netip.AddrPort{}, addr, time.Second))
	expect(t, refused, cm.AddrResolved)
	check(t, refused.ResolveRoute(time.Second))
	expect(t, refused, cm.RouteResolved)
	check(t, refused.Connect(cm.ConnParam{QPNum: 3}))
	s2 := expect(t, l, cm.ConnectRequest).NewID
	check(t, s2.Reject([]byte("no")))
	e = expect(t, refused, cm.Rejected)
	if err := e.Err(); !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(string(e.PrivateData), "no\x00") {
		t.Errorf("%+v, %v", e, err)
	}
	check(t, errors.Join(s2.Close(), s.Close()))
	for _, id := range []*cm.ID{refused, c, other, l} {
		check(t, errors.Join(id.Close(), id.Channel().Close()))
	}
}

// useGroup joins and leaves a multicast group.
func useGroup(t *testing.T, tr *cm.Transport) {
	t.Helper()
	id := newID(t, tr, cm.PortSpaceUDP)
	group := netip.MustParseAddr("239.1.2.3")
	check(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(group, 0), time.Second))
	expect(t, id, cm.AddrResolved)
	check(t, id.Join(group, false))
	if e := expect(t, id, cm.MulticastJoin); e.QPNum != 0xffffff || e.QKey != 0x01234567 || e.AV.DGID.Addr() != group {
		t.Errorf("%+v", e)
	}
	check(t, id.Leave(group))
	check(t, errors.Join(id.Close(), id.Channel().Close()))
}

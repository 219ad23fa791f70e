package soft_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// must returns v, or ends the test if err is not nil.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newDevice makes a device on a network in memory.
func newDevice(t *testing.T, o soft.Options) *soft.Device {
	t.Helper()
	if o.Network == nil {
		o.Network = verbstest.NewNetwork(verbstest.Options{})
	}
	if o.Addrs == nil {
		o.Addrs = []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	}
	d := must(soft.New(o))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestDevice lists a device, finds it in every way, and uses it no more when it is closed.
func TestDevice(t *testing.T) {
	d := newDevice(t, soft.Options{})
	if !strings.HasPrefix(d.Name(), "soft") || !slices.Equal(d.Addrs(), []netip.Addr{netip.MustParseAddr("10.9.0.1")}) {
		t.Errorf("device %q with addresses %v", d.Name(), d.Addrs())
	}
	found := must(uverbs.Find(d.Name()))(t)
	if found.IWARP() || found.NodeErr != nil || found.GUID == (verbs.GUID{}) {
		t.Errorf("found %+v", found)
	}
	for _, spec := range []string{found.GUID.String(), "10.9.0.1"} {
		if other, err := uverbs.Find(spec); err != nil || other != found {
			t.Errorf("%s: %+v, %v", spec, other, err)
		}
	}
	if i, err := found.Index(); err != nil || i < 1<<30 {
		t.Errorf("index %d, %v", i, err)
	}
	index, _ := found.Index()
	if other, err := uverbs.FindIndex(index); err != nil || other != found {
		t.Errorf("device %d: %+v, %v", index, other, err)
	}
	if addrs, err := cm.DeviceAddrs(found); err != nil || !slices.Equal(addrs, d.Addrs()) {
		t.Errorf("addresses %v, %v", addrs, err)
	}
	ctx := must(found.Open())(t)
	if ctx.Driver() != "rxe" {
		t.Errorf("driver %s", ctx.Driver())
	}
	if keys, err := ctx.PKeys(1); err != nil || !slices.Equal(keys, []uint16{0xffff}) {
		t.Errorf("P_Keys %x, %v", keys, err)
	}
	counters := must(ctx.Counters(1))(t)
	if _, ok := counters["sent_pkts"]; !ok || len(counters) != len(d.Stats()) {
		t.Errorf("counters %v", counters)
	}
	if n := d.Resources()["ctx"]; n != 1 {
		t.Errorf("%d contexts", n)
	}
	if err := ctx.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := uverbs.Find(d.Name()); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("found a closed device: %v", err)
	}
	if _, err := uverbs.FindIndex(index); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("found a closed device by its index: %v", err)
	}
	if _, err := found.Open(); !errors.Is(err, verbs.ErrNoDevice) || strings.Contains(err.Error(), "container") {
		t.Errorf("opened a closed device: %v", err)
	}
}

// uncomparable is a network that cannot be the key of a map.
type uncomparable struct {
	soft.Network
	_ func()
}

// TestNames makes devices with the same name, and with the next one.
func TestNames(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	a := newDevice(t, soft.Options{Network: network, Name: "first"})
	b := newDevice(t, soft.Options{Network: network, Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})
	if a.CM() != b.CM() {
		t.Errorf("devices of one network have connection managers %q and %q", a.CM(), b.CM())
	}
	if c := newDevice(t, soft.Options{Network: network, Host: "c", Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.3")}}); c.CM() == a.CM() {
		t.Error("devices of two hosts have one connection manager")
	}
	if c := newDevice(t, soft.Options{}); c.CM() == a.CM() || c.Name() == b.Name() {
		t.Errorf("device %q is like %q: connection managers %q and %q", c.Name(), b.Name(), c.CM(), a.CM())
	}
	for name, o := range map[string]soft.Options{
		"name in use":    {Name: "first", Network: network, Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.4")}},
		"address in use": {Network: network, Addrs: a.Addrs()},
		"no address":     {Network: network},
		"port":           {Port: 1 << 16},
		"no host":        {Network: uncomparable{Network: network}, Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.4")}},
	} {
		before := len(must(uverbs.Devices())(t))
		if d, err := soft.New(o); err == nil {
			d.Close()
			t.Errorf("%s: made a device", name)
		}
		if after := len(must(uverbs.Devices())(t)); after != before {
			t.Errorf("%s: there were %d devices, and are %d", name, before, after)
		}
	}
}

// pair connects two QPs, of two devices.
func pair(t *testing.T, da, db *soft.Device) (a, b *endpoint) {
	t.Helper()
	a, b = newEndpoint(t, da), newEndpoint(t, db)
	ea, eb := must(a.qp.Addr(1))(t), must(b.qp.Addr(1))(t)
	for _, err := range []error{a.qp.Connect(ea, eb, uverbs.ConnectOptions{Access: verbs.AccessAll}), b.qp.Connect(eb, ea, uverbs.ConnectOptions{Access: verbs.AccessAll})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

type endpoint struct {
	ctx *uverbs.Context
	pd  *uverbs.PD
	ch  *uverbs.CompChannel
	cq  *uverbs.CQ
	qp  *uverbs.QP
	mr  *uverbs.MR
}

func newEndpoint(t *testing.T, d *soft.Device) *endpoint {
	t.Helper()
	s := &endpoint{ctx: must(uverbs.Open(d.Name()))(t)}
	s.pd = must(s.ctx.AllocPD())(t)
	s.ch = must(s.ctx.CreateCompChannel())(t)
	s.cq = must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 16, Channel: s.ch}))(t)
	s.qp = must(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}))(t)
	s.mr = must(s.pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{}))(t)
	return s
}

func (s *endpoint) close(t *testing.T) {
	t.Helper()
	for _, c := range []interface{ Close() error }{s.mr, s.qp, s.cq, s.ch, s.pd, s.ctx} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestUDP sends a message between two devices over UDP on loopback addresses, with zero and
// given options.
func TestUDP(t *testing.T) {
	da := newUDPDevice(t, "127.0.0.1")
	db := newUDPDevice(t, "127.0.0.2")
	a, b := pair(t, da, db)
	defer a.close(t)
	defer b.close(t)
	if _, err := b.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.mr.SGE(0, 4096)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("by UDP")}); err != nil {
		t.Fatal(err)
	}
	wc, err := b.cq.Next(within(t))
	if err != nil || string(b.mr.Bytes()[:wc.ByteLen]) != "by UDP" {
		t.Errorf("received %q, %v", b.mr.Bytes()[:wc.ByteLen], err)
	}
	if _, err := a.cq.Next(within(t)); err != nil {
		t.Error(err)
	}
	if da.Stats()["sent_pkts"] == 0 {
		t.Errorf("counters %v", da.Stats())
	}
}

// newUDPDevice makes a device of a host of its own on UDP, on a port that tests of other packages
// do not use.
func newUDPDevice(t *testing.T, addrs ...string) *soft.Device {
	t.Helper()
	d, err := soft.New(soft.Options{Host: addrs[0], Addrs: parsed(addrs), Port: 14791})
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip(err) // not all systems have all of 127.0.0.0/8
	}
	must(d, err)(t)
	t.Cleanup(func() { d.Close() })
	return d
}

func parsed(addrs []string) (list []netip.Addr) {
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestRemoval closes a device with an open context, while a goroutine waits for a completion:
// requests are flushed, calls fail with ErrDeviceRemoved, and objects can be closed.
func TestRemoval(t *testing.T) {
	d := newDevice(t, soft.Options{})
	a, b := pair(t, d, d)
	if _, err := b.qp.PostRecv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{b.mr.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := a.cq.Next(within(t))
		waited <- err
	}()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Errorf("wait for a completion: %v", err)
	}
	var wcs [2]verbs.WC
	if n := b.cq.Poll(wcs[:]); n != 1 || wcs[0].ID != 5 || wcs[0].Status != verbs.WCFlushErr {
		t.Errorf("completions of the peer: %v", wcs[:n])
	}
	for e, err := range a.ctx.AsyncEvents(within(t)) {
		if err != nil {
			t.Error(err)
		}
		if e.Type == verbs.EventDeviceFatal {
			break
		}
		t.Log("event before the last one:", e.Type)
	}
	for name, call := range map[string]func() error{
		"query device": func() error { _, err := a.ctx.QueryDevice(); return err },
		"query port":   func() error { _, err := a.ctx.QueryPort(1); return err },
		"query QP":     func() error { _, err := a.qp.Query(); return err },
		"GID table":    func() error { _, err := a.ctx.GIDTable(); return err },
		"PD":           func() error { _, err := a.ctx.AllocPD(); return err },
		"MR":           func() error { _, err := a.pd.AllocMR(64, verbs.AccessLocalWrite, uverbs.MROptions{}); return err },
		"channel":      func() error { _, err := a.ctx.CreateCompChannel(); return err },
		"resize":       func() error { return a.cq.Resize(64) },
	} {
		if err := call(); !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.close(t)
	b.close(t)
	for kind, n := range d.Resources() {
		if n != 0 {
			t.Errorf("%d %s are left", n, kind)
		}
	}
}

// TestRemovalPolled closes a device under a program that only polls and posts: what was posted
// completes, once, and posting fails.
func TestRemovalPolled(t *testing.T) {
	d := newDevice(t, soft.Options{})
	a, b := pair(t, d, d)
	srq := must(b.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8}))(t)
	shared := must(b.pd.CreateQP(uverbs.QPOptions{SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq}))(t)
	recvs := []verbs.RecvWR{{ID: 1}, {ID: 2}, {ID: 3}}
	sends := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}, {ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}} // b has no receive
	for _, post := range []func() (int, error){
		func() (int, error) { return a.qp.PostSend(sends...) },
		func() (int, error) { return a.qp.PostRecv(recvs...) },
		func() (int, error) { return srq.PostRecv(recvs...) },
	} {
		if _, err := post(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// A receive that is posted before the loss is known completes as well.
	posted := 3
	end := within(t)
	for _, post := range []func() error{
		func() error { _, err := srq.PostRecv(); return err },
		func() error {
			n, err := a.qp.PostRecv(verbs.RecvWR{ID: uint64(posted + 1)})
			posted += n
			return err
		},
		func() error { _, err := a.qp.PostSend(); return err },
	} {
		err := post()
		for ; err == nil && end.Err() == nil; err = post() {
			time.Sleep(time.Millisecond)
		}
		if !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("post: %v", err)
		}
	}
	check := func(q *uverbs.CQ, num uint32, want []uint64) {
		t.Helper()
		var ids []uint64
		for end := within(t); len(ids) < len(want) && end.Err() == nil; time.Sleep(time.Millisecond) {
			var wcs [16]verbs.WC
			for _, wc := range wcs[:q.Poll(wcs[:])] {
				if ids = append(ids, wc.ID); wc.QPNum != num || wc.Status != verbs.WCFlushErr {
					t.Errorf("%+v", wc)
				}
			}
		}
		if slices.Sort(ids); !slices.Equal(ids, want) || q.Poll(make([]verbs.WC, 1)) != 0 {
			t.Errorf("completed %d, not %d, or more", ids, want)
		}
	}
	want := []uint64{1, 2} // sends
	for id := range uint64(posted) {
		want = append(want, id+1)
	}
	slices.Sort(want)
	check(a.cq, a.qp.Num(), want)
	check(b.cq, shared.Num(), []uint64{1, 2, 3})
	if err := errors.Join(shared.Close(), srq.Close()); err != nil {
		t.Error(err)
	}
	a.close(t)
	b.close(t)
}

// TestDroppedContext closes the file of a context whose objects are open: they are destroyed.
func TestDroppedContext(t *testing.T) {
	d := newDevice(t, soft.Options{})
	func() { newEndpoint(t, d) }()
	for range 1000 {
		if d.Resources()["ctx"] == 0 {
			break
		}
		collect()
	}
	for kind, n := range d.Resources() {
		if n != 0 {
			t.Errorf("%d %s are left", n, kind)
		}
	}
}

// TestConnect dials between two hosts, whose listeners have the same port.
func TestConnect(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	var transports []*cm.Transport
	var listeners []*cm.Listener
	var devices []string
	for _, name := range []string{"10.9.0.1", "10.9.0.2"} {
		d := newDevice(t, soft.Options{Network: network, Host: name, Addrs: []netip.Addr{netip.MustParseAddr(name)}})
		transport := &cm.Transport{Host: d}
		t.Cleanup(func() {
			if err := transport.Close(); err != nil {
				t.Error(err)
			}
		})
		l := must((&cm.ListenConfig{Transport: transport}).Listen(t.Context(), name+":7471"))(t)
		t.Cleanup(func() { l.Close() })
		transports, listeners, devices = append(transports, transport), append(listeners, l), append(devices, d.Name())
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := listeners[1].Accept(within(t))
		if err == nil {
			var e *cm.Endpoint
			if e, err = r.Accept(within(t), cm.Options{}); err == nil {
				<-e.Done()
				err = e.Close()
			}
		}
		accepted <- err
	}()
	e := must((&cm.Dialer{Transport: transports[0]}).Dial(within(t), "10.9.0.2:7471"))(t)
	if got := e.QP.PD().Context().Device().Name; got != devices[0] {
		t.Errorf("connected by %s", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// TestHostsOnUDP finds the way between hosts with devices on UDP, in both directions.
func TestHostsOnUDP(t *testing.T) {
	for _, addrs := range [][2]string{{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.3"}} {
		t.Run(addrs[0]+" and "+addrs[1], func(t *testing.T) {
			a, b := newUDPDevice(t, addrs[0]), newUDPDevice(t, addrs[1])
			for _, r := range [][2]*soft.Device{{a, b}, {b, a}} {
				local, remote := r[0].Addrs()[0], r[1].Addrs()[0]
				d := cm.Dialer{Transport: &cm.Transport{Host: r[0]}}
				p, err := d.Lookup(within(t), remote.String())
				if err != nil || p.Device.Name != r[0].Name() || p.Local != local || p.Remote != remote {
					t.Errorf("from %v to %v: %+v, %v", local, remote, p, err)
				}
				if err := d.Transport.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestLogger logs what happens to a device.
func TestLogger(t *testing.T) {
	var log bytes.Buffer
	d := newDevice(t, soft.Options{Logger: textLogger(&log)})
	d.Close()
	for _, text := range []string{"device added", "device removed", d.Name(), "10.9.0.1"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("no %q in the log:\n%s", text, &log)
		}
	}
}

package rdmadev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// wait waits until the port has a state, and its network link follows.
func (a adapter) wait(t *testing.T, state verbs.PortState) rdmadev.Device {
	t.Helper()
	var d rdmadev.Device
	labtest.Until(t, fmt.Sprintf("%s to be %v", a.name, state), func() bool {
		var err error
		if d, err = rdmadev.Find(a.name); err != nil || len(d.Ports) != 1 || d.Ports[0].State != state || d.VerbsNode == "" {
			return false
		}
		if a.infiniBand {
			return true
		}
		if len(d.Ports[0].Interfaces) != 1 {
			return false
		}
		link, err := net.InterfaceByName(d.Ports[0].Interfaces[0])
		return err == nil && (link.Flags&net.FlagRunning != 0) == (state == verbs.PortActive)
	})
	return d
}

// configure gives the network link of an adapter that has come back what the lab gave it.
func (a adapter) configure(t *testing.T) {
	t.Helper()
	if a.infiniBand || a.erdma { // whose link stays
		return
	}
	labtest.Until(t, "the network link to be configured", func() bool {
		links, _ := net.Interfaces()
		i := slices.IndexFunc(links, func(l net.Interface) bool { return l.HardwareAddr.String() == a.mac.String() })
		if i < 0 {
			return false
		}
		link := links[i].Name
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_dad", []byte("0"), 0)
		script := "link set " + link + " up\n"
		for _, addr := range a.addrs {
			switch {
			case addr.IsLinkLocalUnicast():
			case addr.Is4():
				script += fmt.Sprintf("addr replace %v/24 dev %s\n", addr, link)
			default:
				script += fmt.Sprintf("addr replace %v/64 dev %s\n", addr, link)
			}
		}
		ip := exec.Command("ip", "-batch", "-")
		ip.Stdin = strings.NewReader(script)
		out, iperr := ip.CombinedOutput()
		if err = errors.Join(err, iperr); err != nil { // a busy machine may take it away again, and recover once more
			t.Logf("%v: %s", err, out)
		}
		return err == nil
	})
}

// same checks that the adapter is what it was.
func (a adapter) same(t *testing.T) {
	t.Helper()
	d := a.wait(t, verbs.PortActive)
	if a.erdma {
		a.testERDMA(t, d)
		return
	}
	if !a.infiniBand {
		labtest.Until(t, "GIDs", func() bool {
			gids, err := d.Ports[0].GIDs()
			return err == nil && len(gids) >= len(a.addrs)
		})
	}
	a.testDevice(t, d)
	a.testGIDs(t, d.Ports[0])
}

// linkDowned returns how often the port has gone down, of which the kernel keeps 8 bits.
func linkDowned(t *testing.T, a adapter) uint64 {
	t.Helper()
	counters := labtest.Must(labtest.Must(rdmadev.Find(a.name))(t).Ports[0].Counters())(t)
	i := slices.IndexFunc(counters, func(c rdmadev.Counter) bool { return c.Name == "link_downed" })
	if i < 0 {
		t.Fatalf("no counter link_downed in %v", counters)
	}
	return counters[i].Value
}

// TestAdapterPort brings the port of an adapter down and up.
func TestAdapterPort(t *testing.T) {
	labtest.RequireGuest(t, "disturbs adapters")
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		if a.erdma {
			t.Skip("its port is that of another device")
		}
		dir := labtest.PCIDir(t, a.name)
		t.Cleanup(func() { labtest.Check(t, connectx.Inject(dir, connectx.FaultPortUp, 0)) })
		before := linkDowned(t, a)
		for n := range labtest.Rounds(20, 2) {
			labtest.Check(t, connectx.Inject(dir, connectx.FaultPortDown, 0))
			if d := a.wait(t, verbs.PortDown); d.Ports[0].PhysState == verbs.PhysLinkUp {
				t.Errorf("the port is down and its physical state %v", d.Ports[0].PhysState)
			}
			if got, want := linkDowned(t, a), min(before+uint64(n)+1, 255); got != want {
				t.Errorf("link_downed is %d, want %d", got, want)
			}
			labtest.Check(t, connectx.Inject(dir, connectx.FaultPortUp, 0))
			a.wait(t, verbs.PortActive)
		}
		for range labtest.Rounds(1000, 10) { // faster than anybody looks
			labtest.Check(t, connectx.Inject(dir, connectx.FaultPortDown, 0))
			labtest.Check(t, connectx.Inject(dir, connectx.FaultPortUp, 0))
		}
		labtest.Check(t, connectx.Inject(dir, connectx.FaultStorm, 1000))
		a.same(t)
	})
}

// TestAdapterRemoved removes the PCI device of an adapter, and finds it again.
func TestAdapterRemoved(t *testing.T) {
	labtest.RequireGuest(t, "disturbs adapters")
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		for range labtest.Rounds(5, 1) {
			labtest.Check(t, os.WriteFile(labtest.PCIDir(t, a.name)+"/remove", []byte("1"), 0))
			if d, err := rdmadev.Find(device); !errors.Is(err, verbs.ErrNoDevice) {
				t.Fatalf("it is removed, and found: %+v, %v", d, err)
			}
			labtest.Check(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
			a.configure(t)
			a.same(t)
		}
	})
}

// leavesPrograms skips a test that removes the adapter under programs, if the kernel waits for them.
func (a adapter) leavesPrograms(t *testing.T) {
	t.Helper()
	if labtest.OlderERDMA(a.name) {
		t.Skip("erdma of 6.1 has no disassociate_ucontext: the kernel waits until the device is closed")
	}
}

// TestAdapterLost removes the PCI device of an adapter under a program that only polls: what it has
// posted completes, once and in order, and posting fails.
func TestAdapterLost(t *testing.T) {
	labtest.RequireGuest(t, "disturbs adapters")
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		a.leavesPrograms(t)
		dir := labtest.PCIDir(t, a.name)
		t.Cleanup(func() {
			labtest.Check(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
			a.configure(t)
			a.same(t)
		})
		x, y := labtest.NewPair(t, device, rdmatest.PairOptions{OneCQ: true})
		z, _ := labtest.NewPair(t, device, rdmatest.PairOptions{SRQ: labtest.Has(t, device, uverbs.FeatureSRQ)})
		send := func(id uint64, flags verbs.SendFlags) verbs.SendWR {
			return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: flags, SGL: []verbs.SGE{x.MR.SGE(0, 8)}}
		}
		recvs := []verbs.RecvWR{{ID: 11}, {ID: 12}, {ID: 13}}
		// One message arrives, and completes after one whose sender does not want to know. The peer
		// has no receive for the others, so they wait.
		labtest.Must(y.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{y.MR.SGE(0, 8)}}, verbs.RecvWR{SGL: []verbs.SGE{y.MR.SGE(8, 8)}}))(t)
		labtest.Must(x.PostRecv(recvs...))(t)
		labtest.Must(z.PostRecv(recvs...))(t)
		labtest.Must(x.QP.PostSend(send(1, 0), send(2, verbs.SendSignaled), send(3, verbs.SendSignaled), send(4, 0)))(t)
		poll := func(q *uverbs.CQ, want ...uint64) {
			t.Helper()
			labtest.Until(t, fmt.Sprint("completions of ", want), func() bool {
				var wcs [2]verbs.WC
				for _, wc := range wcs[:q.Poll(wcs[:])] {
					if len(want) == 0 || wc.ID != want[0] || (wc.Status != verbs.WCFlushErr) != (wc.ID == 2) {
						t.Fatalf("%+v, not %d", wc, want)
					}
					want = want[1:]
				}
				return len(want) == 0
			})
			if q.Poll(make([]verbs.WC, 1)) != 0 {
				t.Error("there are more completions")
			}
		}
		poll(x.SendCQ, 2)
		labtest.Check(t, os.WriteFile(dir+"/remove", []byte("1"), 0))
		poll(x.SendCQ, 3, 4, 11, 12, 13)
		poll(z.RecvCQ, 11, 12, 13)
		for name, post := range map[string]func() (int, error){
			"send":           func() (int, error) { return x.QP.PostSend(send(5, 0)) },
			"receive":        func() (int, error) { return x.QP.PostRecv(recvs...) },
			"shared receive": func() (int, error) { return z.PostRecv(recvs...) },
		} {
			if n, err := post(); n != 0 || !errors.Is(err, verbs.ErrDeviceRemoved) {
				t.Errorf("%s: %d posted, %v", name, n, err)
			}
		}
	})
}

// TestAdapterFirmware stops the firmware of an adapter. The kernel's health poll reports that, a
// command waits, and has its answer when the firmware goes on.
func TestAdapterFirmware(t *testing.T) {
	labtest.RequireLong(t) // the kernel notices after some polls, of 2 s each
	labtest.RequireGuest(t, "disturbs adapters")
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		if a.erdma {
			a.testTimeout(t)
			return
		}
		dir := labtest.PCIDir(t, a.name)
		ctx := labtest.Must(uverbs.Open(device))(t)
		defer ctx.Close()
		addr := labtest.Must(rdmadev.Find(device))(t).PCI.Addr
		reports := func() (n int) {
			for line := range strings.Lines(labtest.KernelLog(t)) {
				if strings.Contains(line, addr) && strings.Contains(line, "reached miss count") {
					n++
				}
			}
			return n
		}
		before := reports()
		t.Cleanup(func() { labtest.Check(t, connectx.Inject(dir, connectx.FaultNone, 0)) })
		labtest.Check(t, connectx.Inject(dir, connectx.FaultFirmware, 0))
		answered := make(chan error, 1)
		go func() {
			pd, err := ctx.AllocPD()
			if err == nil {
				err = pd.Close()
			}
			answered <- err
		}()
		labtest.Until(t, "the kernel's report", func() bool { return reports() > before })
		select {
		case err := <-answered:
			t.Errorf("the firmware has answered: %v", err)
			answered <- nil
		default:
		}
		labtest.Check(t, connectx.Inject(dir, connectx.FaultNone, 0))
		if err := <-answered; err != nil {
			t.Errorf("a command that has waited: %v", err)
		}
		a.same(t)
	})
}

// testTimeout stops the firmware of an erdma. A command fails when the driver no longer waits for it, and all later
// ones do at once, until the driver has found the adapter again.
func (a adapter) testTimeout(t *testing.T) {
	dir := labtest.PCIDir(t, a.name)
	ctx := labtest.OpenDevice(t, a.name)
	labtest.Check(t, connectx.Inject(dir, connectx.FaultFirmware, 0))
	for i, most := range []time.Duration{time.Minute, time.Second} { // ERDMA_CMDQ_TIMEOUT_MS is 15 s
		begun := time.Now()
		if cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 64}); err == nil || time.Since(begun) > most {
			t.Errorf("CQ %d without a firmware: %v, %v, within %v", i, cq, err, time.Since(begun))
		}
	}
	labtest.Check(t, ctx.Close(), os.WriteFile(dir+"/remove", []byte("1"), 0), os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
	a.same(t)
	cq := labtest.Made(labtest.OpenDevice(t, a.name).CreateCQ(uverbs.CQOptions{Depth: 64}))(t)
	labtest.Check(t, cq.Close())
}

// testBroken breaks all connections of an erdma, whose firmware answers no more: what is posted is flushed, and a new
// connection works when the driver has found the adapter again.
func (a adapter) testBroken(t *testing.T) {
	a.leavesPrograms(t)
	dir := labtest.PCIDir(t, a.name)
	t.Run("connection", func(t *testing.T) {
		x, y := labtest.NewPair(t, a.name, rdmatest.PairOptions{})
		labtest.Must(y.PostRecv(verbs.RecvWR{ID: 7}))(t)
		labtest.Check(t, connectx.Inject(dir, connectx.FaultFatal, 0))
		var wcs [1]verbs.WC
		labtest.Until(t, "the receive to be flushed", func() bool { return y.RecvCQ.Poll(wcs[:]) == 1 })
		if wcs[0].ID != 7 || wcs[0].Status != verbs.WCFlushErr {
			t.Errorf("%+v", wcs[0])
		}
		labtest.Check(t, os.WriteFile(dir+"/remove", []byte("1"), 0))
		for _, e := range []*rdmatest.Endpoint{x, y} {
			labtest.Until(t, "the removal", func() bool {
				_, err := e.PostRecv(verbs.RecvWR{})
				return errors.Is(err, verbs.ErrDeviceRemoved)
			})
		}
	})
	labtest.Check(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
	a.same(t)
	x, y := labtest.NewPair(t, a.name, rdmatest.PairOptions{})
	labtest.Must(y.PostRecv(verbs.RecvWR{}))(t)
	labtest.Must(x.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}))(t)
	var wcs [1]verbs.WC
	labtest.Until(t, "a message", func() bool { return y.RecvCQ.Poll(wcs[:]) == 1 })
	labtest.Check(t, wcs[0].Err())
}

// TestAdapterFatal disables an adapter, as a fatal error of its firmware does. Programs get an
// event, and the kernel makes the device and its network link again.
func TestAdapterFatal(t *testing.T) {
	labtest.RequireGuest(t, "disturbs adapters")
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		if a.erdma {
			labtest.RequireLong(t) // the driver's commands time out
			a.testBroken(t)
			return
		}
		before := labtest.Must(rdmadev.Find(device))(t)
		ctx := labtest.Must(uverbs.Open(device))(t)
		defer ctx.Close()
		labtest.Check(t, connectx.Inject(labtest.PCIDir(t, a.name), connectx.FaultFatal, 0))
		for {
			if e := labtest.Must(ctx.NextAsyncEvent(t.Context()))(t); e.Type == verbs.EventDeviceFatal {
				break
			}
		}
		labtest.Check(t, ctx.Close())
		labtest.Until(t, "another device", func() bool {
			d, err := rdmadev.Find(device)
			return err == nil && d.Index != before.Index
		})
		labtest.Until(t, "its port", func() bool {
			a.configure(t) // again, as the link that is there may be the one that goes
			d, err := rdmadev.Find(device)
			return err == nil && d.Ports[0].State == verbs.PortActive
		})
		a.same(t)
		ctx = labtest.Must(uverbs.Open(device))(t)
		pd := labtest.Must(ctx.AllocPD())(t)
		labtest.Check(t, pd.Close(), ctx.Close())
	})
}

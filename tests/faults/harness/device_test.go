package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// kinds are the types of software devices.
var kinds = map[string]string{labtest.RXE: "rxe", labtest.SIW: "siw"}

// isAdapter reports whether a device is an adapter on the PCI bus.
func isAdapter(device string) bool { return kinds[device] == "" }

// waitFor waits until something works.
func waitFor(t testing.TB, works func() error) {
	t.Helper()
	var err error
	for range 600 {
		if err = works(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal(err)
}

// waitDevice waits until the device works.
func (e *env) waitDevice() {
	e.Helper()
	waitFor(e, func() error { return checkDevice(e.device) })
}

func checkDevice(device string) error {
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	p, err := ctx.QueryPort(1)
	if err != nil {
		return err
	}
	if s := p.State; s != verbs.PortActive {
		return fmt.Errorf("port is %v", s)
	}
	if !ctx.Device().IWARP() { // whose GID is a hardware address
		gids, err := ctx.GIDTable()
		if err != nil {
			return err
		}
		for _, g := range gids {
			if g.GID.Addr().Is4() {
				return nil
			}
		}
		return errors.New("no GID of an IPv4 address")
	}
	return nil
}

// TestRemoval deletes the device. Most kernels wait until all processes have closed it; see
// TestRemovalWhileOpen.
func TestRemoval(t *testing.T) {
	runFault(t, fault{title: "the device is removed, and made again", quick: "rsock", run: func(e *env) {
		c, l := e.startLoad()
		start := time.Now()
		deleted := make(chan error, 1)
		remove := e.remover()
		go func() { deleted <- remove() }()
		<-l.done
		// The peer, on the same device, may have noticed it first, and left.
		saw := e.expect(e.peerGoneErrors(verbs.ErrDeviceRemoved), l.err)
		e.close(l.s)
		select {
		case err := <-deleted:
			if err != nil {
				e.Error(err)
			}
		case <-time.After(30 * time.Second):
			e.Error("all is closed, but the device stays")
		}
		e.Logf("deleted after %v", time.Since(start))
		c.end()
		e.addDevice()
		e.finish(e.serve(), saw, l.endTime.Sub(start))
	}})
}

// remover returns a function that deletes the device, or removes the PCI device of an adapter.
func (e *env) remover() func() error {
	e.Helper()
	if !isAdapter(e.device) {
		return func() error { return netlink.RdmaLinkDel(e.device) }
	}
	dir := labtest.PCIDir(e, e.device)
	return func() error { return os.WriteFile(dir+"/remove", []byte("1"), 0) }
}

// configureAdapter waits for an adapter that the kernel makes again, and gives its link the
// addresses that the lab gave it.
func (e *env) configureAdapter() {
	e.Helper()
	waitFor(e, func() error {
		link, err := netlink.LinkByName(labtest.LinkOf(e.device))
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, a := range []string{labtest.AddrOf(e.device) + "/24", labtest.Addr6Of(e.device) + "/64"} {
			addr := labtest.Must(netlink.ParseAddr(a))(e)
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrReplace(link, addr); err != nil {
				return err
			}
		}
		return checkDevice(e.device)
	})
}

// addDevice creates the device and waits until it works.
func (e *env) addDevice() {
	e.Helper()
	if isAdapter(e.device) {
		labtest.Check(e, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
		e.configureAdapter()
		return
	}
	labtest.Check(e, netlink.RdmaLinkAdd(e.device, kinds[e.device], labtest.LinkOf(e.device)))
	e.waitDevice()
}

// TestLink sets the link down for a second. siw does not notice, as packets to the same host use
// lo, nor does an adapter, which sends to itself. A queue pair of rxe that sends in that time fails
// immediately, which only its owner notices. This includes the queue pair of the connection
// manager: then no process can connect until the device is created again (6.12: rxe_requester moves
// it to the error state, from which ib_mad does not recover it).
func TestLink(t *testing.T) {
	runFault(t, fault{title: "the link is down for a second", run: func(e *env) {
		c := e.serve()
		l := newLoadTimeout(e.dial(c), 10*time.Second)
		labtest.Check(e, l.waitRounds(5))
		l.takeLongest()
		link := labtest.Must(netlink.LinkByName(labtest.LinkOf(e.device)))(e)
		start := time.Now()
		labtest.Check(e, netlink.LinkSetDown(link))
		time.Sleep(time.Second)
		if err := netlink.LinkSetUp(link); err != nil {
			e.Error(err)
		}
		six, _ := netlink.ParseAddr(labtest.Addr6Of(e.device) + "/64")
		six.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, six); err != nil && !errors.Is(err, unix.EEXIST) {
			e.Error(err)
		}
		e.waitDevice()
		if e.device != labtest.RXE {
			e.expectContinues(c, l, 20)
			return
		}
		<-l.done
		saw := e.expect(wantErrors{
			"cm":    {verbs.ErrDisconnected, verbs.WCFlushErr, context.DeadlineExceeded},
			"rconn": {verbs.ErrDisconnected, verbs.WCFlushErr, context.DeadlineExceeded},
			"rmsg":  {verbs.ErrDisconnected, verbs.WCFlushErr, context.DeadlineExceeded},
			"rsock": {unix.ECONNRESET, os.ErrDeadlineExceeded},
		}, l.err)
		took := l.endTime.Sub(start)
		if errors.Is(l.err, verbs.WCFlushErr) && !errors.Is(l.err, verbs.ErrDisconnected) && e.layer.Name != "rsock" {
			saw += ", and no reason"
		}
		e.close(l.s, unix.ETIMEDOUT) // rsock may only now send to a queue pair that has failed
		// The connection manager's queue pair may or may not have failed.
		ctx, cancel := context.WithTimeout(e.Context(), 3*time.Second)
		s, err := e.layer.Dial(ctx, c.addr)
		cancel()
		if err == nil {
			e.close(s)
		}
		c.end()
		if err != nil {
			e.Logf("%v: the device is made again", err)
			saw += ", device made again"
			labtest.Check(e, netlink.RdmaLinkDel(e.device))
			e.addDevice()
		}
		e.finish(e.serve(), saw, took)
	}})
}

//go:build linux

package cm_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// usePorts makes the connection manager choose from n ports, at random, and uses some of
// them for TCP on siw's address, which it returns. The connection manager does not know those.
func usePorts(t *testing.T, n, used int) (host string) {
	labtest.RequireKernel(t)
	const file, first = "/proc/sys/net/ipv4/ip_local_port_range", 40000
	old := labtest.Must(os.ReadFile(file))(t)
	t.Cleanup(func() { os.WriteFile(file, old, 0) })
	labtest.Check(t, os.WriteFile(file, fmt.Appendf(nil, "%d %d", first, first+n-1), 0))
	host = labtest.AddrOf(labtest.SIW)
	for port := first; port < first+used; port++ {
		labtest.Made(net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))))(t)
	}
	return host
}

// TestPortsInUse listens on any free port while TCP uses some.
func TestPortsInUse(t *testing.T) {
	host := usePorts(t, 10, 3)
	for range 20 {
		l, err := cm.Listen(t.Context(), host+":0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// TestDialPortsInUse dials while TCP uses some of the ports. Whether a port is in use shows only
// after Setup has posted receives: a dial that takes another must not flush them, as the CQ is
// the program's.
func TestDialPortsInUse(t *testing.T) {
	labtest.RequireBoth(t)
	host := usePorts(t, 100, 30)
	ctx := within(t, time.Minute)
	dev := labtest.OpenDevice(t, labtest.SIW)
	cq := labtest.Made(dev.CreateCQ(uverbs.CQOptions{Depth: 256}))(t)
	pd := labtest.Made(dev.AllocPD())(t)
	var log logRecorder
	inUse := func() int {
		return len(slices.DeleteFunc(log.messages(), func(m string) bool {
			return m != "DEBUG port is in use, another is tried"
		}))
	}
	for inUse() < 5 { // three dials of ten: ctx is done when none is
		setups := 0
		opt := cm.Options{PD: pd, SendCQ: cq, RecvCQ: cq, Logger: slog.New(&log), Setup: func(e *cm.Endpoint) error {
			setups++
			_, err := e.QP.PostRecv(verbs.RecvWR{ID: 1})
			return err
		}}
		client, server := labtest.Connect(ctx, t, host+":0", opt, cm.Options{})
		var wcs [4]verbs.WC
		if n := cq.Poll(wcs[:]); n != 0 || setups != 1 {
			t.Errorf("%d calls of Setup; completions %v", setups, wcs[:n])
		}
		if client.LocalAddr() != server.RemoteAddr() {
			t.Errorf("the peer of %v sees %v", client.LocalAddr(), server.RemoteAddr())
		}
		client.Close()
		server.Close()
		for cq.Poll(wcs[:]) > 0 { // the receive of the closed QP
		}
	}
}

package hosts

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// TestMain runs the peer in the second machine, until that is powered off.
func TestMain(m *testing.M) {
	if os.Getenv("VERBS_HOST") == "2" {
		fmt.Fprintln(os.Stderr, servePeer())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// drivers are the lab's devices, and their wires.
var drivers = []driver{{labtest.RXE, "w0", "10.9.0.%d"}, {labtest.SIW, "w1", "10.9.1.%d"}}

type driver struct{ device, wire, addr string }

// name returns the name of the driver, not of the device.
func (d driver) name() string { return d.device[:3] }

// hostAddr returns the address of a host, with port 0.
func (d driver) hostAddr(host int) string { return fmt.Sprintf(d.addr, host) + ":0" }

// layers returns the layers that the driver supports.
func (d driver) layers() []*workload.Layer {
	return slices.DeleteFunc(slices.Clone(workload.Layers), func(l *workload.Layer) bool {
		return l.Datagrams && d.device != labtest.RXE
	})
}

// eachDriver runs a test on both drivers, with a peer.
func eachDriver(t *testing.T, test func(t *testing.T, d driver, p *peer)) {
	p := dialPeer(t)
	for _, d := range drivers {
		t.Run(d.name(), func(t *testing.T) { test(t, d, p) })
	}
}

// eachLayer runs a test with all layers that each driver supports.
func eachLayer(t *testing.T, test func(t *testing.T, l *workload.Layer, d driver, p *peer)) {
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		for _, l := range d.layers() {
			t.Run(l.Name, func(t *testing.T) { test(t, l, d, p) })
		}
	})
}

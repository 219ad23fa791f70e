package rdmatest

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// Device is a device on which programs can listen and dial.
type Device struct {
	Name   string     // "rxe0"
	Driver string     // of the kernel: "rxe", "siw", "mlx5_core"; "soft" in user space
	IWARP  bool       // the side that dials must send first
	Addr   netip.Addr // of this machine, on the device
}

// ListenAddr returns the address to listen on at a free port.
func (d Device) ListenAddr() string { return net.JoinHostPort(d.Addr.String(), "0") }

// Open opens the device until the test ends.
func (d Device) Open(t testing.TB) *uverbs.Context {
	t.Helper()
	return made(uverbs.Open(d.Name))(t)
}

// Devices returns the devices that package uverbs can open and that have an address. If there are
// none, it skips the test, or fails it if RDMATEST is "require".
func Devices(t testing.TB) []Device {
	t.Helper()
	return require(t, "RDMA (VERBS_SOFT=127.0.0.1 makes a device in user space)", devices(t))
}

// Find returns the first device of a driver. It skips or fails the test like [Devices].
func Find(t testing.TB, driver string) Device {
	t.Helper()
	var found []Device
	for _, d := range devices(t) {
		if d.Driver == driver {
			found = append(found, d)
		}
	}
	return require(t, "a device of driver "+driver, found)[0]
}

// Each runs a test on each device, as a subtest with the device's name.
func Each(t *testing.T, test func(t *testing.T, d Device)) {
	t.Helper()
	for _, d := range Devices(t) {
		t.Run(d.Name, func(t *testing.T) { test(t, d) })
	}
}

func require(t testing.TB, what string, found []Device) []Device {
	t.Helper()
	switch {
	case len(found) > 0:
	case os.Getenv("RDMATEST") == "require":
		t.Fatalf("this machine does not have %s", what)
	default:
		t.Skipf("needs %s: go test -exec rdmalab", what)
	}
	return found
}

func devices(t testing.TB) (found []Device) {
	t.Helper()
	all, err := rdmadev.Devices()
	check(t, err)
	for _, d := range all {
		u, err := uverbs.Find(d.Name)
		if err != nil {
			continue // it has no node
		}
		ctx, err := u.Open()
		if err != nil {
			continue
		}
		ctx.Close()
		addr, err := endpoint.Addr(u)
		if err != nil {
			continue // its port is down
		}
		found = append(found, Device{d.Name, d.Driver, d.Type == rdmadev.NodeRNIC, addr})
	}
	return found
}

// closeLater closes c when the test ends. The test fails if that fails.
func closeLater(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() { closeNow(t, c) })
}

func closeNow(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

//go:build linux

// Package labtest contains helpers for tests of all packages with a real kernel.
package labtest

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// The lab's devices. A test connects a device with itself.
const (
	RXE, SIW = labdev.RXE, labdev.SIW
	MLX5     = "mlx5_0" // with rdmalab --nic connectx only
)

// only is the device for tests that name none. They then run on it instead of on each device, or on the
// first.
var only = os.Getenv("LABTEST_DEVICE")

// roce is only, or rxe0 if that is a device of iWARP.
var roce = func() string {
	if node, _ := os.ReadFile("/sys/class/infiniband/" + only + "/node_type"); only != "" && strings.Contains(string(node), "RNIC") {
		return RXE
	}
	return only
}()

// RoCE is the device for tests that iWARP cannot do: rxe0, or the device in the variable LABTEST_DEVICE
// unless that is one of iWARP. Addr is its address.
var (
	RoCE = cmp.Or(roce, RXE)
	Addr = AddrOf(RoCE)
)

// AddrOf returns the address of a device.
func AddrOf(device string) string {
	v4, _ := labdev.Addrs(cmp.Or(device, roce), 1)
	return v4.Addr().String()
}

// Addr6Of returns the IPv6 address of a device.
func Addr6Of(device string) string {
	_, v6 := labdev.Addrs(device, 1)
	return v6.Addr().String()
}

// LinkOf returns the name of a device's network link.
func LinkOf(device string) string {
	if link, ok := labdev.Links[device]; ok {
		return link
	}
	if d, err := rdmadev.Find(device); err == nil && len(d.Ports) > 0 && len(d.Ports[0].Interfaces) > 0 {
		return d.Ports[0].Interfaces[0]
	}
	return ""
}

// Addressed returns the names of the lab's devices that have an IP address. InfiniBand's have none.
func Addressed() []string {
	all := []string{RXE, SIW}
	if a := Adapters(); len(a) > 0 && a[0] != labdev.InfiniBand {
		all = append(all, labdev.Adapters(a)[0])
	}
	return slices.DeleteFunc(all, func(d string) bool { return only != "" && d != only })
}

// Each runs a test on each of the lab's devices, or on the device in the variable LABTEST_DEVICE.
func Each(t *testing.T, test func(t *testing.T, device string)) {
	t.Helper()
	Require(t)
	all := Must(uverbs.Devices())(t)
	if only != "" {
		all = slices.DeleteFunc(all, func(d uverbs.Device) bool { return d.Name != only })
		if len(all) == 0 {
			t.Fatalf("no device is %s, which LABTEST_DEVICE names", only)
		}
	}
	for _, d := range all {
		t.Run(d.Name, func(t *testing.T) { test(t, d.Name) })
	}
}

// Open opens the lab's first device, rxe0, or the device in the variable LABTEST_DEVICE unless that is one of
// iWARP.
func Open(t testing.TB) *uverbs.Context {
	t.Helper()
	return OpenDevice(t, "")
}

// OpenDevice opens a device of the lab.
func OpenDevice(t testing.TB, name string) *uverbs.Context {
	t.Helper()
	Require(t)
	if Soft && name == SIW {
		t.Skip("needs siw")
	}
	return Made(uverbs.Open(cmp.Or(name, roce)))(t)
}

// EachClean is like Each, and compares the inventories before and after a test.
func EachClean(t *testing.T, test func(t *testing.T, device string)) {
	t.Helper()
	Each(t, func(t *testing.T, device string) {
		before := SettledInventory(t)
		t.Run("all", func(t *testing.T) { test(t, device) })
		CheckLeaks(t, before)
	})
}

// UntilActive waits until the device's port is active.
func UntilActive(t testing.TB, device string) {
	t.Helper()
	Until(t, device, func() bool {
		b, _ := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
		return strings.Contains(string(b), "ACTIVE")
	})
}

// ExpectWarning makes the lab ignore warnings of the kernel that contain text, which
// otherwise fail the test.
func ExpectWarning(t testing.TB, text string) {
	t.Helper()
	if Soft {
		return
	}
	Check(t, os.WriteFile("/dev/kmsg", []byte("lab: expect warning: "+text), 0))
}

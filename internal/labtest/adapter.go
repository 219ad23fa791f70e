//go:build linux

package labtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest/labdev"
)

// Adapters returns the adapters that the lab emulates, as its --nic names them. [labdev.Adapters] returns
// their names.
func Adapters() []string {
	return strings.FieldsFunc(os.Getenv("VERBS_NIC"), func(r rune) bool { return r == ',' })
}

// EachAdapter runs a test on each adapter that the lab emulates, whether or not there is a provider
// that can open it. Without one it skips the test.
func EachAdapter(t *testing.T, test func(t *testing.T, device string, infiniBand bool)) {
	t.Helper()
	RequireKernel(t)
	adapters := Adapters()
	if len(adapters) == 0 {
		t.Skip(`needs an emulated adapter: run by make test-nic, or with go test -exec "build/lab --nic connectx"`)
	}
	for i, device := range labdev.Adapters(adapters) {
		t.Run(device, func(t *testing.T) { test(t, device, adapters[i] == labdev.InfiniBand) })
	}
}

// IsERDMA reports whether a device is an erdma of the lab.
func IsERDMA(device string) bool { return strings.HasPrefix(device, labdev.ERDMA) }

// OlderERDMA reports whether a device has the erdma of 6.1: without counters and atomics, and it stays until
// all programs have closed it.
func OlderERDMA(device string) bool {
	return IsERDMA(device) && Older(6, 2)
}

// PCIDir returns the folder in sysfs of an adapter's PCI device, which stays while the kernel has
// no RDMA device of it.
func PCIDir(t testing.TB, device string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + device + "/device")
	if err == nil || !IsERDMA(device) {
		return Must(dir, err)(t)
	}
	// erdma does not link its device to the adapter (erdma_device_register names it for DMA alone). The lab has one
	// at most.
	for _, file := range Must(filepath.Glob("/sys/bus/pci/devices/*/vendor"))(t) {
		if vendor, _ := os.ReadFile(file); strings.HasPrefix(string(vendor), "0x1ded") {
			return Must(filepath.EvalSymlinks(filepath.Dir(file)))(t)
		}
	}
	t.Fatalf("%s has no PCI device", device)
	return ""
}

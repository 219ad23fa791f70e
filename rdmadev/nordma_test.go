package rdmadev

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/goverbs/verbs"
)

// TestNoRDMA calls what needs the kernel on a machine without RDMA.
func TestNoRDMA(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband"); err == nil && runtime.GOOS == "linux" {
		t.Skip("this machine has RDMA")
	}
	if devices, err := Devices(); err != nil || len(devices) != 0 {
		t.Errorf("%v, %v", devices, err)
	}
	_, ferr := Find("rxe0")
	_, serr := ReadSystem()
	for what, err := range map[string]error{
		"Find": ferr, "ReadSystem": serr, "AddLink": AddLink("rxe0", "rxe", "eth0"), "SetSharedDevices": SetSharedDevices(true),
	} {
		if !errors.Is(err, verbs.ErrNoRDMA) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

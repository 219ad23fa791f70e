package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

// fakeSysfs makes a sysfs and a /dev of files, since most machines have no device
// without a node.
func fakeSysfs(t *testing.T, files map[string]string) {
	t.Helper()
	root := t.TempDir()
	oldClass, oldDev := sysClass, devDir
	sysClass, devDir = filepath.Join(root, "sys"), filepath.Join(root, "dev")
	t.Cleanup(func() { sysClass, devDir = oldClass, oldDev })
	if err := os.MkdirAll(sysClass, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	devices, err := filepath.Glob(filepath.Join(sysClass, "infiniband/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices { // what all devices have
		os.Mkdir(filepath.Join(d, "ports"), 0o755)
		for attr, text := range map[string]string{"node_type": "1: CA", "node_guid": "0000:0000:0000:0000"} {
			if path := filepath.Join(d, attr); files["sys/infiniband/"+filepath.Base(d)+"/"+attr] == "" {
				if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestDevices(t *testing.T) {
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev":       "rxe0",
		"sys/infiniband_verbs/uverbs0/abi_version": "2",
		"sys/infiniband/rxe0/node_guid":            "5054:00ff:fe12:3456",
		"sys/infiniband/rxe0/node_type":            "1: CA",
		"sys/infiniband/rxe0/ports/1/state":        "4: ACTIVE",
		"sys/infiniband/rxe0/ports/2/state":        "1: DOWN",
		"dev/uverbs0":                              "",
		// In a container, with its node not passed in.
		"sys/infiniband_verbs/uverbs1/ibdev": "cxgb4_0",
		"sys/infiniband/cxgb4_0/node_guid":   "0000:0000:0000:0001",
		"sys/infiniband/cxgb4_0/node_type":   "4: RNIC",
		// Of another network namespace: no entry in the class.
		"sys/infiniband_verbs/uverbs2/ibdev": "rxe9",
		// Being removed.
		"sys/infiniband_verbs/uverbs3/abi_version": "2",
	})
	devs, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) != 2 {
		t.Fatalf("devices: %+v", devs)
	}
	if d := devs[0]; d.Name != "rxe0" || d.GUID.String() != "505400fffe123456" ||
		d.ports != 2 || d.NodeErr != nil || d.IWARP() {
		t.Errorf("first device: %+v", d)
	}
	if d := devs[1]; d.Name != "cxgb4_0" || !errors.Is(d.NodeErr, verbs.ErrNoNode) || !d.IWARP() {
		t.Errorf("second device: %+v", d)
	}
	if _, err := devs[1].Open(); !errors.Is(err, verbs.ErrNoNode) {
		t.Errorf("opening it: %v", err)
	}
	if _, err := Open("cxgb4_0"); !errors.Is(err, verbs.ErrNoNode) {
		t.Errorf("opening it by name: %v", err)
	}
}

// TestDeviceOrder checks that devices are sorted by number, not by name.
func TestDeviceOrder(t *testing.T) {
	files := map[string]string{}
	for _, n := range []string{"0", "1", "2", "9", "10", "11", "100"} {
		files["sys/infiniband_verbs/uverbs"+n+"/ibdev"] = "rxe" + n
		files["sys/infiniband/rxe"+n+"/node_type"] = "1: CA"
	}
	fakeSysfs(t, files)
	devs, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range devs {
		names = append(names, d.Name)
	}
	if want := []string{"rxe0", "rxe1", "rxe2", "rxe9", "rxe10", "rxe11", "rxe100"}; !slices.Equal(names, want) {
		t.Errorf("devices: %v, want %v", names, want)
	}
}

func TestNoDevices(t *testing.T) {
	fakeSysfs(t, nil)
	if devs, err := Devices(); len(devs) != 0 || err != nil {
		t.Errorf("devices: %v, %v", devs, err)
	}
	_, err := Open("")
	if !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("open: %v", err)
	}
	for _, setup := range []string{"verbs link add rxe0 rxe", "rdma link add rxe0 type rxe", "siw"} {
		if !strings.Contains(err.Error(), setup) {
			t.Errorf("open does not say %q: %v", setup, err)
		}
	}
	sysClass = filepath.Join(t.TempDir(), "none")
	if _, err := Open(""); !errors.Is(err, verbs.ErrNoDevice) || strings.Contains(err.Error(), "modprobe") || !strings.Contains(err.Error(), "mount sysfs") {
		t.Errorf("open without sysfs: %v", err)
	}
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev": "rxe0",
		"sys/infiniband/rxe0/node_guid":      "0000:0000:0000:0001",
	})
	if _, err := Open(""); !errors.Is(err, verbs.ErrNoNode) {
		t.Errorf("open of the only device, which has no node: %v", err)
	}
}

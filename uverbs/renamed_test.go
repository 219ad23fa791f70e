//go:build unix

package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
)

// TestRenamedMeanwhile renames a device, and removes one, while its attributes are read.
func TestRenamedMeanwhile(t *testing.T) {
	guid := verbs.GUID{0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56}
	for name, change := range map[string]func(ibdev, device string) (want []Device){
		"renamed": func(ibdev, device string) []Device {
			os.Rename(device, filepath.Join(filepath.Dir(device), "mlx5_0"))
			os.WriteFile(ibdev, []byte("mlx5_0\n"), 0o644)
			return []Device{{Name: "mlx5_0", GUID: guid, ports: 1}}
		},
		"removed": func(ibdev, device string) []Device {
			os.RemoveAll(device)
			os.Remove(ibdev)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeSysfs(t, map[string]string{
				"sys/infiniband_verbs/uverbs0/ibdev": "rxe0",
				"sys/infiniband/rxe0/node_guid":      "5054:00ff:fe12:3456",
				"sys/infiniband/rxe0/ports/1/state":  "4: ACTIVE",
				"dev/uverbs0":                        "",
			})
			// Who reads the attribute waits for who writes it, and then for the change.
			device := filepath.Join(sysClass, "infiniband/rxe0")
			fifo := filepath.Join(device, "node_type")
			if err := errors.Join(os.Remove(fifo), syscall.Mkfifo(fifo, 0o644)); err != nil {
				t.Fatal(err)
			}
			changed := make(chan []Device, 1)
			go func() {
				f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
				if err != nil {
					t.Error(err)
				}
				defer f.Close()
				os.Remove(fifo) // it is read once
				os.WriteFile(fifo, []byte("1: CA\n"), 0o644)
				changed <- change(filepath.Join(sysClass, "infiniband_verbs/uverbs0/ibdev"), device)
			}()
			devs, err := Devices()
			if want := <-changed; err != nil || len(devs) != len(want) || len(devs) > 0 && (devs[0].Name != want[0].Name || devs[0].GUID != want[0].GUID || devs[0].ports != want[0].ports) {
				t.Errorf("%+v, %v, want %+v", devs, err, want)
			}
		})
	}
}

// TestPortRenamedMeanwhile renames a device, and removes one, while the attributes of its port are read.
func TestPortRenamedMeanwhile(t *testing.T) {
	device := func(elem ...string) string {
		return filepath.Join(append([]string{sysClass, "infiniband"}, elem...)...)
	}
	for name, test := range map[string]struct {
		change func(read int)
		reads  int
		err    error
	}{
		"not":     {func(int) {}, 1, nil},
		"removed": {func(int) { os.RemoveAll(device("rxe0")) }, 1, verbs.ErrDeviceRemoved},
		"renamed": {func(read int) {
			if read == 1 {
				os.Rename(device("rxe0"), device("mlx5_0"))
				os.WriteFile(filepath.Join(sysClass, "infiniband_verbs/uverbs0/ibdev"), []byte("mlx5_0\n"), 0o644)
			}
		}, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fakeSysfs(t, map[string]string{
				"sys/infiniband_verbs/uverbs0/ibdev":  "rxe0",
				"sys/infiniband/rxe0/node_guid":       "5054:00ff:fe12:3456",
				"sys/infiniband/rxe0/ports/1/pkeys/0": "0xffff",
			})
			devs, err := Devices()
			if err != nil || len(devs) != 1 {
				t.Fatal(devs, err)
			}
			reads, text := 0, ""
			err = (&Context{contextCore: &contextCore{device: devs[0]}}).readPort(1, func(dir string) error {
				reads++
				test.change(reads)
				text, _ = readAttr(dir, "pkeys/0")
				return nil
			})
			if !errors.Is(err, test.err) || reads != test.reads || err == nil && text != "0xffff" {
				t.Errorf("%v after %d reads of %q, want %v after %d", err, reads, text, test.err, test.reads)
			}
		})
	}
}

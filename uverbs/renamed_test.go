//go:build unix

package uverbs

import (
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
			if err := syscall.Mkfifo(fifo, 0o644); err != nil {
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
				changed <- change(filepath.Join(sysClass, "infiniband_verbs/uverbs0/ibdev"), device)
			}()
			devs, err := Devices()
			if want := <-changed; err != nil || len(devs) != len(want) || len(devs) > 0 && (devs[0].Name != want[0].Name || devs[0].GUID != want[0].GUID || devs[0].ports != want[0].ports) {
				t.Errorf("%+v, %v, want %+v", devs, err, want)
			}
		})
	}
}

//go:build linux

package uverbs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// TestDevicesOutOfFiles checks that Devices fails, and omits nothing, when the process
// has no files left.
func TestDevicesOutOfFiles(t *testing.T) {
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev": "rxe0",
		"sys/infiniband/rxe0/node_guid":      "5054:00ff:fe12:3456",
		"sys/infiniband/rxe0/ports/1/state":  "4: ACTIVE",
		"dev/uverbs0":                        "",
	})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for limit := uint64(0); limit < 1000; limit++ {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}, nil); err != nil {
			t.Fatal(err)
		}
		devs, err := Devices()
		unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil)
		if err == nil {
			if len(devs) != 1 || devs[0].GUID == (verbs.GUID{}) || devs[0].ports != 1 {
				t.Errorf("with %d files: %+v", limit, devs)
			}
			break
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with %d files: %v", limit, err)
		}
		refused++
	}
	if refused == 0 {
		t.Error("files were never missed")
	}
}

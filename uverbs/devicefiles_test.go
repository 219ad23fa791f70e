//go:build linux

package uverbs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest/starve"
)

// TestDevicesOutOfFiles checks that Devices and Find fail, and omit nothing, when the process
// has no files left.
func TestDevicesOutOfFiles(t *testing.T) {
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev":            "rxe0",
		"sys/infiniband/rxe0/node_guid":                 "5054:00ff:fe12:3456",
		"sys/infiniband/rxe0/ports/1/state":             "4: ACTIVE",
		"sys/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "lo",
		"dev/uverbs0": "",
	})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() (Device, error){
		"list": func() (d Device, err error) {
			devs, err := Devices()
			if len(devs) == 1 {
				d = devs[0]
			}
			return d, err
		},
		"find by interface": func() (Device, error) { return Find("lo") },
		"find by address":   func() (Device, error) { return Find("127.0.0.1") },
	} {
		refused := 0
		for limit := uint64(0); limit < 1000; limit++ {
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}, nil); err != nil {
				t.Fatal(err)
			}
			d, err := try()
			unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil)
			if err == nil {
				if d.Name != "rxe0" || d.GUID == (verbs.GUID{}) || d.ports != 1 {
					t.Errorf("%s with %d files: %+v", name, limit, d)
				}
				break
			}
			if !errors.Is(err, unix.EMFILE) {
				t.Errorf("%s with %d files: %v", name, limit, err)
			}
			refused++
		}
		if refused == 0 {
			t.Errorf("%s: files were never missed", name)
		}
	}
}

// TestFindOutOfFiles finds a device while another goroutine takes the last file of the process now and then: it is
// never said not to exist.
func TestFindOutOfFiles(t *testing.T) {
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev":            "rxe0",
		"sys/infiniband/rxe0/node_guid":                 "5054:00ff:fe12:3456",
		"sys/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "lo",
		"dev/uverbs0": "",
	})
	find := func() error {
		for _, spec := range []string{"lo", "127.0.0.1"} {
			if _, err := Find(spec); err != nil {
				return err
			}
		}
		return nil
	}
	if err := find(); err != nil {
		t.Fatal(err)
	}
	starve.Files(t, find)
}

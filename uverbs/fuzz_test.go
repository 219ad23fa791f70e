package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

// FuzzDevices lists a device with arbitrary attributes in sysfs: it is listed with those
// that are valid, or not at all.
func FuzzDevices(f *testing.F) {
	f.Add("rxe0", "2", "1: CA", "5054:00ff:fe12:3456")
	f.Add("", "", "", "")
	f.Add("..", "-1", "\x00", "::::")
	f.Add("../infiniband_verbs", "99999999999999999999", "4: RNIC\n\n", "5054:00ff:fe12:34567")
	f.Fuzz(func(t *testing.T, name, version, nodeType, guid string) {
		fakeSysfs(t, map[string]string{
			"sys/infiniband_verbs/uverbs0/ibdev":       name,
			"sys/infiniband_verbs/uverbs0/abi_version": version,
			"sys/infiniband/rxe0/node_type":            nodeType,
			"sys/infiniband/rxe0/node_guid":            guid,
			"sys/infiniband/rxe0/ports/1/state":        "4: ACTIVE",
			"dev/uverbs0":                              "",
		})
		devs, err := Devices()
		var e *verbs.Error
		if err != nil && !errors.As(err, &e) || len(devs) > 1 {
			t.Fatalf("%v, %v", devs, err)
		}
		for _, d := range devs {
			if d.Name != strings.TrimSpace(name) || filepath.Base(d.Name) != d.Name || d.Name == "." || d.Name == ".." {
				t.Fatalf("device %q of %q", d.Name, name)
			}
			if _, err := os.Stat(filepath.Join(sysClass, "infiniband", d.Name)); err != nil {
				t.Fatal(err)
			}
			if d.ports != 1 || d.NodeErr != nil {
				t.Fatalf("%+v", d)
			}
			if again, err := verbs.ParseGUID(d.GUID.String()); err != nil || again != d.GUID {
				t.Fatalf("%q is %v, which becomes %v, %v", guid, d.GUID, again, err)
			}
		}
	})
}

package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
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
			if d.Ports != 1 || d.NodeErr != nil {
				t.Fatalf("%+v", d)
			}
			if again, err := verbs.ParseGUID(d.GUID.String()); err != nil || again != d.GUID {
				t.Fatalf("%q is %v, which becomes %v, %v", guid, d.GUID, again, err)
			}
		}
	})
}

// FuzzIndices parses arbitrary netlink answers: all names and numbers that are returned
// are in the answer, and errors are errnos.
func FuzzIndices(f *testing.F) {
	message := func(typ uint16, data []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		return append(append(b, make([]byte, 10)...), data...)
	}
	attr := func(typ uint16, data string) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
		b = append(binary.NativeEndian.AppendUint16(b, typ), data...)
		return append(b, make([]byte, -len(data)&3)...)
	}
	const get = abi.RDMA_NL_NLDEV<<10 | abi.RDMA_NLDEV_CMD_GET
	device := message(get, append(attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, "\x03\x00\x00\x00"), attr(abi.RDMA_NLDEV_ATTR_DEV_NAME, "rxe0\x00")...))
	done := message(unix.NLMSG_DONE, make([]byte, 4))
	indices := map[string]int{}
	if last, err := parseDumpReply(append(device, done...), collectIndices(indices)); !last || err != nil || fmt.Sprint(indices) != fmt.Sprint(map[string]int{"rxe0": int(binary.NativeEndian.Uint32([]byte{3, 0, 0, 0}))}) {
		f.Fatalf("%v, %v, %v", indices, last, err)
	}
	f.Add(append(device, done...))
	f.Add(message(unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, ^uint32(0))))
	f.Add(message(unix.NLMSG_ERROR, nil))
	f.Add(message(get, []byte{0, 0, 0, 0}))
	f.Add(message(get, []byte{5, 0, 2, 0, 'x'}))
	f.Fuzz(func(t *testing.T, b []byte) {
		indices := map[string]int{}
		_, err := parseDumpReply(b, collectIndices(indices))
		if _, errno := err.(unix.Errno); err != nil && (!errno || err.Error() == "") {
			t.Fatalf("%T %v", err, err)
		}
		for name, i := range indices {
			if !strings.Contains(string(b), name) || !strings.Contains(string(b), string(binary.NativeEndian.AppendUint32(nil, uint32(i)))) {
				t.Fatalf("%q has index %d", name, i)
			}
		}
	})
}

//go:build linux

package uverbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestMemoryKinds registers memory of each kind. What a device cannot be given fails with
// EFAULT, and the error says what it is.
func TestMemoryKinds(t *testing.T) {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	page := os.Getpagesize()
	file := labtest.Must(os.Create(filepath.Join(t.TempDir(), "data")))(t)
	defer file.Close()
	labtest.Check(t, file.Truncate(int64(page)))
	memfd := labtest.Must(unix.MemfdCreate("test", 0))(t)
	defer unix.Close(memfd)
	labtest.Check(t, unix.Ftruncate(memfd, int64(page)))
	mapped := func(t *testing.T, fd, pages, prot, flags int) []byte {
		mem := labtest.Must(unix.Mmap(fd, 0, pages*page, prot, flags))(t)
		t.Cleanup(func() { unix.Munmap(mem) })
		return mem
	}
	var fs unix.Statfs_t
	labtest.Check(t, unix.Fstatfs(int(file.Fd()), &fs))
	writable := "MAP_SHARED"                                                                                                // part of the error
	onDisk := slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC}, int64(fs.Type)) // the lab has an overlay in memory
	old := !labtest.Soft && labtest.Older(6, 5)
	if fs.Type == unix.TMPFS_MAGIC || !labtest.Soft && !onDisk || old {
		writable = "" // before Linux 6.5
	}
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Must(ctx.AllocPD())(t)
		labtest.Close(t, pd)
		siw := ctx.Driver() == "siw"
		const anon = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
		for _, test := range []struct {
			name   string
			mem    []byte
			access verbs.Access
			want   string // part of the error; empty if there is none
		}{
			{"Go", make([]byte, page), verbs.AccessLocalWrite, ""},
			{"memfd", mapped(t, memfd, 1, rw, unix.MAP_SHARED), verbs.AccessLocalWrite, ""},
			{"anonymous, shared", mapped(t, -1, 1, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS), verbs.AccessLocalWrite, ""},
			{"private file", mapped(t, int(file.Fd()), 1, rw, unix.MAP_PRIVATE), verbs.AccessLocalWrite, ""},
			{"file, to read", mapped(t, int(file.Fd()), 1, unix.PROT_READ, unix.MAP_SHARED), verbs.AccessRemoteRead, ""},
			{"file", mapped(t, int(file.Fd()), 1, rw, unix.MAP_SHARED), verbs.AccessLocalWrite, writable},
			{"read-only", mapped(t, -1, 1, unix.PROT_READ, anon), verbs.AccessLocalWrite, "read-only"},
			{"read-only, for windows", mapped(t, -1, 1, unix.PROT_READ, anon), verbs.AccessMWBind, "read-only"},
			{"protected", mapped(t, -1, 1, unix.PROT_NONE, anon), 0, "PROT_NONE"},
			{"behind the end of a file", mapped(t, int(file.Fd()), 2, unix.PROT_READ, unix.MAP_SHARED), 0, "file"},
		} {
			if siw && (test.access == verbs.AccessMWBind || !labtest.Soft && test.access&verbs.AccessLocalWrite == 0) {
				continue // siw has no windows, and writes to what only peers read before 6.8
			}
			if old && (test.name == "file, to read" || test.name == "protected") {
				continue // before Linux 6.2 memory is pinned to be written (FOLL_FORCE), whatever the access
			}
			if labtest.Race && labtest.Soft && test.want == "read-only" {
				continue // the device does not write to memory to probe it
			}
			mr, err := pd.RegisterMR(test.mem, test.access, uverbs.MROptions{})
			if err == nil {
				mr.Close()
			}
			if (err == nil) != (test.want == "") || err != nil && (!errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: %v, want %q", test.name, err, test.want)
			}
		}
	})
}

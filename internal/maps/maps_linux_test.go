package maps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapped maps pages of a file, or of none if fd is -1, until the test ends.
func mapped(t *testing.T, fd, pages, prot, flags int) (mem []byte, addr uint64) {
	t.Helper()
	if fd == -1 {
		flags |= unix.MAP_ANONYMOUS
	}
	mem, err := unix.Mmap(fd, 0, pages*os.Getpagesize(), prot, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem, uint64(uintptr(unsafe.Pointer(&mem[0])))
}

func TestProblem(t *testing.T) {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	page := uint64(os.Getpagesize())
	open := func(dir string) int {
		f, err := os.Create(filepath.Join(dir, "data"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(int64(page)); err != nil {
			t.Fatal(err)
		}
		return int(f.Fd())
	}
	memfd, err := unix.MemfdCreate("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	unix.Ftruncate(memfd, int64(page))
	dir, onDisk := t.TempDir(), true
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
		onDisk = false
	}
	fd := open(dir)

	_, anon := mapped(t, -1, 3, rw, unix.MAP_PRIVATE)
	_, readOnly := mapped(t, -1, 1, unix.PROT_READ, unix.MAP_PRIVATE)
	_, none := mapped(t, -1, 1, unix.PROT_NONE, unix.MAP_PRIVATE)
	file, shared := mapped(t, fd, 1, rw, unix.MAP_SHARED)
	inMemory, memory := mapped(t, memfd, 1, rw, unix.MAP_SHARED)
	copied, private := mapped(t, fd, 1, rw, unix.MAP_PRIVATE)
	hole, holed := mapped(t, -1, 3, rw, unix.MAP_PRIVATE)
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&hole[page])), uintptr(page), 0); errno != 0 {
		t.Fatal(errno)
	}
	for _, mem := range [][]byte{file, inMemory, copied} {
		mem[0] = 1
	}
	diskText := ""
	if onDisk {
		diskText = "/data (MAP_SHARED)"
	}
	for _, test := range []struct {
		name         string
		addr, length uint64
		write        bool
		want         string // part of the text; empty if the memory is fine
	}{
		{"anonymous", anon, 3 * page, true, ""},
		{"read-only", readOnly, page, true, "read-only"},
		{"read-only, to read", readOnly, page, false, ""},
		{"protected", none, page, false, "PROT_NONE"},
		{"a hole", holed, 3 * page, true, "nothing is mapped"},
		{"before the hole", holed, page, true, ""},
		{"a shared file", shared, page, true, diskText},
		{"a shared file, to read", shared, page, false, ""},
		{"a private file", private, page, true, ""},
		{"memfd", memory, page, true, ""},
	} {
		got := Problem(test.addr, test.length, test.write)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	for name, want := range map[uint64]bool{anon: false, shared: onDisk, private: false, memory: false} {
		if got := OnDisk(name, page); got != want {
			t.Errorf("OnDisk(%#x) = %t", name, got)
		}
	}
}

// FuzzParse reads any list of mappings: what is found overlaps the range.
func FuzzParse(f *testing.F) {
	f.Add([]byte("00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n00e03000-00e24000 rw-s 00000000 00:00 0\n"), uint64(0x451000), uint64(0xe04000))
	f.Add([]byte("0-1000 rw 0 0:0 0\n"), uint64(0), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, start, end uint64) {
		for _, m := range parse(text, start, end) {
			m.onDisk()
			if m.end <= start || m.start >= end || len(m.perms) != 4 {
				t.Errorf("%q: %+v is not in %#x to %#x", text, m, start, end)
			}
		}
	})
}

//go:build linux

package vfiouser

import (
	"bytes"
	"errors"
	"os"
	"runtime/debug"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// memfd returns a file like that of a virtual machine's memory.
func memfd(t testing.TB, size int) *os.File {
	t.Helper()
	f := unsealed(t, size)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	return f
}

func unsealed(t testing.TB, size int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "guest")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	return f
}

func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "guest")
}

const rw = unix.PROT_READ | unix.PROT_WRITE

// guest is memory of 16 pages at 0 and 16 at 1 MiB, both of one file.
func guest(t testing.TB) (*Memory, *os.File) {
	f := memfd(t, 32*4096)
	m := newMemory()
	t.Cleanup(m.removeAll)
	for i, addr := range []uint64{0, 1 << 20} {
		if err := m.add(addr, 16*4096, int64(i)*16*4096, rw, dup(t, f)); err != nil {
			t.Fatal(err)
		}
	}
	return m, f
}

func TestReadWrite(t *testing.T) {
	m, f := guest(t)
	want := []byte("across a page")
	if err := m.WriteAt(want, 1<<20+4090); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 16*4096+4090); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %q, %v", got, err)
	}
	clear(got)
	if err := m.ReadAt(got, 1<<20+4090); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAt: %q, %v", got, err)
	}
	for _, addr := range []uint64{16*4096 - 1, 16 * 4096, 1<<20 - 1, 1<<20 + 16*4096 - 5, 1 << 51, 1<<64 - 5} {
		if err := m.WriteAt(want, addr); !errors.Is(err, ErrUnmapped) {
			t.Errorf("WriteAt(%#x): %v", addr, err)
		}
	}
	if err := m.ReadAt(got[:1], 16*4096-1); err != nil || got[0] != 0 {
		t.Errorf("a refused write has written %#x, %v", got[0], err)
	}
}

func TestPages(t *testing.T) {
	m, f := guest(t)
	for i := range 32 {
		f.WriteAt([]byte{byte(i)}, int64(i)*4096)
	}
	addrs := []uint64{3 * 4096, 1<<20 + 4096, 1<<20 + 2*4096, 0}
	v, err := m.Pages(addrs, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for i, want := range []byte{3, 17, 18, 0} {
		if got := v.Bytes()[i*4096]; got != want {
			t.Errorf("page %d is %d, want %d", i, got, want)
		}
	}
	v.Word(4096 + 8).Store(0x01020304)
	var b [4]byte
	if f.ReadAt(b[:], 17*4096+8); b == [4]byte{} {
		t.Error("the guest does not see a store")
	}
	for _, bad := range [][]uint64{{16 * 4096}, {1 << 51}, {1<<64 - 4096}, {0, 1<<20 + 16*4096}, {1}, nil} {
		if v, err := m.Pages(bad, 4096); err == nil {
			v.Close()
			t.Errorf("Pages(%#x) has succeeded", bad)
		}
	}
	for _, size := range []uint64{0, 512, 4097, 1 << 41} {
		if _, err := m.Pages([]uint64{0}, size); err == nil {
			t.Errorf("pages of %d bytes have been mapped", size)
		}
	}
}

// TestUnmapInUse writes to a view after the client has unmapped what it showed.
func TestUnmapInUse(t *testing.T) {
	m, f := guest(t)
	all, err := m.All(1<<20 + 16*4096)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	v, err := m.Pages([]uint64{1 << 20, 0}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.Bytes()[0], all.Bytes()[1<<20+1] = 1, 1
	if err := m.remove(1<<20, 16*4096); err != nil {
		t.Fatal(err)
	}
	v.Bytes()[0], v.Bytes()[4096] = 2, 2
	if !faults(func() { all.Bytes()[1<<20+1] = 2 }) {
		t.Error("a store to where the guest has no memory has taken memory of this process")
	}
	var b [2]byte
	f.ReadAt(b[:], 16*4096)
	if b != [2]byte{1, 1} {
		t.Errorf("the guest has %v where nothing is mapped", b)
	}
	if f.ReadAt(b[:1], 0); b[0] != 2 {
		t.Error("the other region is gone, too")
	}
	if _, err := m.Pages([]uint64{1 << 20}, 4096); !errors.Is(err, ErrUnmapped) {
		t.Errorf("Pages: %v", err)
	}
	// A view of all memory follows what is mapped again.
	if err := m.add(1<<20, 4096, 0, rw, dup(t, f)); err != nil {
		t.Fatal(err)
	}
	if got := all.Bytes()[1<<20]; got != 2 {
		t.Errorf("the view has %d, want 2", got)
	}
}

// faults reports whether do accesses memory that is not there.
func faults(do func()) (yes bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { yes = recover() != nil }()
	do()
	return false
}

// TestPart maps a part of pages that are larger than the guest's memory.
func TestPart(t *testing.T) {
	m, f := guest(t)
	f.WriteAt([]byte{5}, 5*4096)
	f.WriteAt([]byte{16}, 16*4096)
	v, err := m.Part([]uint64{0, 1 << 20}, 1<<20, 5*4096, 11*4096)
	if err != nil {
		t.Fatal(err)
	}
	if b := v.Bytes(); len(b) != 11*4096 || b[0] != 5 {
		t.Errorf("%d bytes, the first %d", len(b), b[0])
	}
	v.Close()
	v, err = m.Part([]uint64{1 << 20, 0, 1 << 20}, 16*4096, 15*4096, 18*4096)
	if err != nil {
		t.Fatal(err)
	}
	if b := v.Bytes(); b[6*4096] != 5 || b[17*4096] != 16 {
		t.Errorf("pages %d and %d, want 5 and 16", b[6*4096], b[17*4096])
	}
	v.Close()
	for _, bad := range []struct{ size, off, length uint64 }{
		{1 << 20, 5 * 4096, 12 * 4096}, {4096, 0, 3 * 4096}, {4096, 2 * 4096, 4096}, {4096, 1, 4096}, {4096, 0, 1},
		{1 << 40, 1<<64 - 4096, 8192}, {1 << 40, 0, maxView + 4096}, {4096, 4096, 0},
	} {
		if v, err := m.Part([]uint64{0, 4096}, bad.size, bad.off, bad.length); err == nil {
			v.Close()
			t.Errorf("%+v has been mapped", bad)
		}
	}
	if m.mapped != 2 || m.reserved != 0 {
		t.Errorf("%d mappings and %d bytes are counted, without views", m.mapped, m.reserved)
	}
}

// TestRemaps maps and unmaps a page as often as in a long life of a guest, with a view of all
// memory.
func TestRemaps(t *testing.T) {
	m, f := guest(t)
	v, err := m.All(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for range maxMapped {
		if err := m.add(1<<24, 4096, 0, rw, dup(t, f)); err != nil {
			t.Fatal(err)
		}
		if err := m.remove(1<<24, 4096); err != nil {
			t.Fatal(err)
		}
	}
	p, err := m.Pages([]uint64{0}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := m.add(1<<24, 4096, 0, rw, dup(t, f)); err != nil {
		t.Fatal(err)
	}
	if faults(func() { v.Bytes()[1<<24] = 1 }) {
		t.Error("the view does not show memory that was mapped last")
	}
}

// TestTooManyViews takes addresses of this process until they are refused.
func TestTooManyViews(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("a process of 32 bits has no room for a view that large")
	}
	m, _ := guest(t)
	var views []*View
	for range maxReserved / maxView {
		v, err := m.All(maxView)
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, v)
	}
	if _, err := m.Pages([]uint64{0}, 4096); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more: %v", err)
	}
	for _, v := range views {
		v.Close()
	}
	v, err := m.Pages([]uint64{0}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
}

func TestReadOnly(t *testing.T) {
	f := memfd(t, 4096)
	m := newMemory()
	defer m.removeAll()
	if err := m.add(0, 4096, 0, unix.PROT_READ, dup(t, f)); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteAt([]byte{1}, 0); !errors.Is(err, ErrUnmapped) {
		t.Errorf("WriteAt: %v", err)
	}
	v, err := m.Pages([]uint64{0}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.Bytes()[0] = 1
	var b [1]byte
	if f.ReadAt(b[:], 0); b[0] != 0 {
		t.Error("the device has written to memory that it may only read")
	}
}

func TestBadMap(t *testing.T) {
	m, f := guest(t)
	for _, c := range []struct {
		name       string
		addr, size uint64
		offset     int64
		want       error
	}{
		{"empty", 1 << 30, 0, 0, unix.EINVAL},
		{"unaligned address", 1<<30 + 1, 4096, 0, unix.EINVAL},
		{"unaligned size", 1 << 30, 4097, 0, unix.EINVAL},
		{"unaligned offset", 1 << 30, 4096, 1, unix.EINVAL},
		{"negative offset", 1 << 30, 4096, -4096, unix.EINVAL},
		{"overflow", 1<<64 - 4096, 8192, 0, unix.EINVAL},
		{"beyond the file", 1 << 30, 4096, 32 * 4096, unix.EINVAL},
		{"larger than the file", 1 << 30, 33 * 4096, 0, unix.EINVAL},
		{"overlap", 15 * 4096, 8192, 0, unix.EEXIST},
		{"around", 0, 17 * 4096, 0, unix.EEXIST},
	} {
		file := dup(t, f)
		if err := m.add(c.addr, c.size, c.offset, rw, file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		file.Close()
	}
	for _, c := range [][2]uint64{{4096, 4096}, {0, 15 * 4096}, {15 * 4096, 1 << 20}, {4096, 1<<64 - 1}} {
		if err := m.remove(c[0], c[1]); !errors.Is(err, unix.EINVAL) {
			t.Errorf("remove(%#x, %#x): %v", c[0], c[1], err)
		}
	}
	if err := m.ReadAt(make([]byte, 16*4096), 0); err != nil {
		t.Errorf("a refused unmap has unmapped: %v", err)
	}
}

// A guest that asks for more mappings than the process may have is refused, and has room again when
// it gives some back.
func TestTooManyMappings(t *testing.T) {
	m, _ := guest(t)
	addrs := make([]uint64, maxMapped-2) // the regions count, too
	for i := range addrs {
		addrs[i] = uint64(i%2) * 2 * 4096 // no two of them are one run
	}
	v, err := m.Pages(addrs, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := m.Pages([]uint64{0}, 4096); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("one more: %v", err)
		}
	}
	v.Close()
	v, err = m.Pages([]uint64{0}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
	if m.mapped != 2 {
		t.Errorf("%d mappings are counted, want those of the regions", m.mapped)
	}
}

// TestReservedAddressesAreNotMemory makes large views where writable memory is limited, as it is
// with vm.overcommit_memory=2.
func TestReservedAddressesAreNotMemory(t *testing.T) {
	m, _ := guest(t)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &old); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: 64 << 30, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_DATA, &old)
	v, err := m.All(1 << 40)
	if strconv.IntSize == 32 {
		if !errors.Is(err, unix.ENOMEM) {
			t.Errorf("a view that has no room in this process: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.Bytes()[1<<20] = 7
	var b [1]byte
	if m.ReadAt(b[:], 1<<20); b[0] != 7 {
		t.Error("the guest does not see a store")
	}
}

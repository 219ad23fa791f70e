package mmap

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"
)

// newRegion maps size bytes of a file, as a driver's queue is mapped.
func newRegion(t testing.TB, size int) *Region {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "queue"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	r, err := Map(int(f.Fd()), 0, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if r.Bytes() != nil {
			t.Error("a closed region has memory")
		}
	})
	return r
}

func TestNewRing(t *testing.T) {
	r := newRegion(t, 4096)
	good := Layout{Producer: 128, Consumer: 256, Data: 384, Log2Slot: 6, Mask: 31}
	ring, err := NewRing(r, good)
	if err != nil {
		t.Fatal(err)
	}
	if ring.Cap() != 31 || ring.SlotSize() != 64 {
		t.Errorf("a ring of %d slots of %d bytes", ring.Cap(), ring.SlotSize())
	}
	for name, spoil := range map[string]func(*Layout){
		"slots no power of two":  func(l *Layout) { l.Mask = 30 },
		"all mask bits":          func(l *Layout) { l.Mask = ^uint32(0) },
		"too many slots":         func(l *Layout) { l.Mask = 63 },
		"too large slots":        func(l *Layout) { l.Log2Slot = 7 },
		"absurd slots":           func(l *Layout) { l.Log2Slot = 200 },
		"negative data":          func(l *Layout) { l.Data = -8 },
		"unaligned data":         func(l *Layout) { l.Data = 385 },
		"data behind the region": func(l *Layout) { l.Data = 4096 },
		"negative producer":      func(l *Layout) { l.Producer = -4 },
		"unaligned producer":     func(l *Layout) { l.Producer = 130 },
		"producer at the end":    func(l *Layout) { l.Producer = 4096 },
		"consumer at the end":    func(l *Layout) { l.Consumer = 4094 },
	} {
		l := good
		spoil(&l)
		if _, err := NewRing(r, l); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzRing compares a ring with a plain slice, from any starting index, so that indices
// wrap around in every way.
func FuzzRing(f *testing.F) {
	f.Add(uint8(3), uint32(0), []byte{1, 2, 3, 200, 7, 9})
	f.Add(uint8(0), ^uint32(0), []byte{1, 128, 1, 128})
	f.Add(uint8(5), uint32(1<<31-2), []byte{31, 159, 31, 159, 31, 159})
	f.Fuzz(func(t *testing.T, log2 uint8, start uint32, ops []byte) {
		mask := uint32(1)<<(log2%8) - 1
		const slot, data = 3, 192
		r := newRegion(t, data+int(mask+1)<<slot)
		ring, err := NewRing(r, Layout{Producer: 64, Consumer: 128, Data: data, Log2Slot: slot, Mask: mask})
		if err != nil {
			t.Fatal(err)
		}
		// The other side is not trusted: any value of an index word is taken modulo the
		// number of slots.
		ring.prod.Store(start)
		ring.cons.Store(start)
		base := uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes())))
		prod, cons := ring.LoadProducer(), ring.LoadConsumer()
		var model []uint64
		var n uint64
		for _, op := range ops {
			if used := ring.Used(prod, cons); int(used) != len(model) || ring.Free(prod, cons) != mask-used {
				t.Fatalf("ring has %d used, %d free, the model %d", used, ring.Free(prod, cons), len(model))
			}
			for range op & 0x7f {
				if op < 0x80 {
					if ring.Free(prod, cons) == 0 {
						break
					}
					*(*uint64)(ring.Slot(prod)) = n
					model = append(model, n)
					n++
					prod = ring.Next(prod)
				} else {
					if ring.Used(prod, cons) == 0 {
						break
					}
					p := uintptr(ring.Slot(cons))
					if p < base+data || p+1<<slot > base+uintptr(len(r.Bytes())) {
						t.Fatalf("slot %d lies outside the region", cons)
					}
					if got := *(*uint64)(ring.Slot(cons)); got != model[0] {
						t.Fatalf("slot %d holds %d, want %d", cons, got, model[0])
					}
					model = model[1:]
					cons = ring.Next(cons)
				}
			}
			ring.StoreProducer(prod)
			ring.StoreConsumer(cons)
			if ring.LoadProducer() != prod || ring.LoadConsumer() != cons {
				t.Fatal("an index changed by being stored")
			}
		}
	})
}

func TestBuffer(t *testing.T) {
	for _, size := range []int{1, 4095, 4096, 4097, 1 << 20} {
		b, err := NewBuffer(size, BufferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m := b.Bytes()
		if len(m) != size || cap(m) != size || b.Addr()%4096 != 0 || b.Addr() == 0 {
			t.Errorf("buffer of %d bytes: len %d, cap %d, at %#x", size, len(m), cap(m), b.Addr())
		}
		for _, v := range m {
			if v != 0 {
				t.Fatal("a new buffer is not zero")
			}
		}
		m[size-1] = 1
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if b.Bytes() != nil || b.Addr() != 0 {
			t.Error("a closed buffer has memory")
		}
	}
	for _, size := range []int{0, -1} {
		if _, err := NewBuffer(size, BufferOptions{}); err == nil {
			t.Errorf("a buffer of %d bytes was made", size)
		}
	}
}

// TestHugePages allocates huge pages if the system has any, and otherwise expects the kernel to
// refuse them. In the lab it reserves some; the pool of another machine is not the test's.
func TestHugePages(t *testing.T) {
	const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	before, err := os.ReadFile(pool)
	if err != nil {
		t.Skip("this kernel has no huge pages of 2 MiB")
	}
	if os.Getenv("VERBS_LAB") != "" && os.WriteFile(pool, []byte("4"), 0o644) == nil { // as labtest.Lab
		t.Cleanup(func() { os.WriteFile(pool, before, 0o644) })
	}
	now, _ := os.ReadFile(pool)
	b, err := NewBuffer(3<<20, BufferOptions{PageSize: 2 << 20})
	if string(now) == "0\n" {
		if err == nil {
			t.Error("huge pages out of nowhere")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if len(b.Bytes()) != 3<<20 || b.Addr()%(2<<20) != 0 {
		t.Errorf("%d bytes at %#x", len(b.Bytes()), b.Addr())
	}
	b.Bytes()[3<<20-1] = 1
}

func TestMapErrors(t *testing.T) {
	if _, err := Map(0, 0, 0); err == nil {
		t.Error("mapped nothing")
	}
	if _, err := Map(-1, 0, 4096); !errors.Is(err, syscall.EBADF) {
		t.Errorf("mapped no file: %v", err)
	}
}

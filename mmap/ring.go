package mmap

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Layout describes the place of a ring in a [Region]. Offsets are in bytes.
type Layout struct {
	Producer int    // of the 32-bit producer index
	Consumer int    // of the 32-bit consumer index
	Data     int    // of slot 0
	Log2Slot uint32 // log2 of the size of a slot
	Mask     uint32 // number of slots - 1; slots are a power of two
}

// Slots describes the slots of a [Ring]. Loops copy it so that it stays in registers.
type Slots struct {
	data unsafe.Pointer
	size uintptr // of a slot
	mask uint32
}

// Ring is a circular queue with one producer and one consumer, one of which is the kernel. It is
// empty when the indices are equal, so it holds at most Mask entries. The zero Ring is not usable.
//
// Indices are positions modulo the number of slots: those that LoadProducer, LoadConsumer, Next and
// After return.
type Ring struct {
	Slots
	prod *atomic.Uint32
	cons *atomic.Uint32
}

// NewRing returns a ring in r, after checking that all of it is inside r. The ring is
// valid until r is closed.
func NewRing(r *Region, l Layout) (Ring, error) {
	size := uint64(len(r.mem))
	word := func(off int) bool { return off >= 0 && off%4 == 0 && uint64(off)+4 <= size }
	switch {
	case l.Mask&(l.Mask+1) != 0 || l.Mask == ^uint32(0):
		return Ring{}, fmt.Errorf("mmap: ring of %d slots: not a power of two", uint64(l.Mask)+1)
	case l.Log2Slot > 30 || l.Data < 0 || l.Data%8 != 0,
		uint64(l.Data)+(uint64(l.Mask)+1)<<l.Log2Slot > size,
		!word(l.Producer), !word(l.Consumer):
		return Ring{}, fmt.Errorf("mmap: ring %+v does not fit in a region of %d bytes", l, size)
	}
	base := unsafe.Pointer(unsafe.SliceData(r.mem))
	return Ring{
		Slots: Slots{data: unsafe.Add(base, l.Data), size: 1 << l.Log2Slot, mask: l.Mask},
		prod:  (*atomic.Uint32)(unsafe.Add(base, l.Producer)),
		cons:  (*atomic.Uint32)(unsafe.Add(base, l.Consumer)),
	}, nil
}

// Cap returns the largest number of entries that the ring holds.
func (s Slots) Cap() int { return int(s.mask) }

// SlotSize returns the size of a slot in bytes.
func (s Slots) SlotSize() int { return int(s.size) }

// Slot returns the address of slot i modulo the number of slots.
func (s Slots) Slot(i uint32) unsafe.Pointer {
	return unsafe.Add(s.data, uintptr(i&s.mask)*s.size) // a shift would take a certain register
}

// Next returns the index after i.
func (s Slots) Next(i uint32) uint32 { return s.After(i, 1) }

// After returns the index n slots after i.
func (s Slots) After(i, n uint32) uint32 { return (i + n) & s.mask }

// Used returns the number of entries between the two indices.
func (s Slots) Used(prod, cons uint32) uint32 { return (prod - cons) & s.mask }

// Free returns the number of entries that can be added.
func (s Slots) Free(prod, cons uint32) uint32 { return s.mask - s.Used(prod, cons) }

// LoadProducer loads the producer index with acquire: entries before it are visible.
func (r *Ring) LoadProducer() uint32 { return r.prod.Load() & r.mask }

// Producer returns the word of the producer index, which the kernel may set to any value.
func (r *Ring) Producer() *atomic.Uint32 { return r.prod }

// StoreProducer publishes entries before index i with release.
func (r *Ring) StoreProducer(i uint32) { StoreRelease(r.prod, i) }

// LoadConsumer loads the consumer index with acquire: slots before it may be overwritten.
func (r *Ring) LoadConsumer() uint32 { return r.cons.Load() & r.mask }

// StoreConsumer frees the slots before index i with release.
func (r *Ring) StoreConsumer(i uint32) { StoreRelease(r.cons, i) }

package mmap

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Layout says where in a [Region] a ring lies. Offsets are in bytes.
type Layout struct {
	Producer int    // of the 32-bit producer index
	Consumer int    // of the 32-bit consumer index
	Data     int    // of slot 0
	Log2Slot uint32 // log2 of the size of a slot
	Mask     uint32 // number of slots - 1; slots are a power of two
}

// Ring is a circular queue with one producer and one consumer, one of which
// is the kernel. It is empty when the indices are equal, so it holds at most
// Mask entries. The zero Ring is not usable.
//
// Indices are positions modulo the number of slots.
type Ring struct {
	data unsafe.Pointer
	prod *atomic.Uint32
	cons *atomic.Uint32
	mask uint32
	log2 uint32
}

// NewRing lays a ring over r after checking that all of it lies inside r. The
// ring is valid until r is closed.
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
		data: unsafe.Add(base, l.Data),
		prod: (*atomic.Uint32)(unsafe.Add(base, l.Producer)),
		cons: (*atomic.Uint32)(unsafe.Add(base, l.Consumer)),
		mask: l.Mask,
		log2: l.Log2Slot,
	}, nil
}

// Cap is the largest number of entries the ring holds.
func (r *Ring) Cap() int { return int(r.mask) }

// SlotSize is the size of a slot in bytes.
func (r *Ring) SlotSize() int { return 1 << r.log2 }

// Slot is the address of slot i, which is taken modulo the number of slots.
func (r *Ring) Slot(i uint32) unsafe.Pointer {
	return unsafe.Add(r.data, uintptr(i&r.mask)<<(r.log2&63)) // so that the compiler sees it is no more
}

// Next is the index after i.
func (r *Ring) Next(i uint32) uint32 { return (i + 1) & r.mask }

// Used is the number of entries between the two indices.
func (r *Ring) Used(prod, cons uint32) uint32 { return (prod - cons) & r.mask }

// Free is the number of entries that can be added.
func (r *Ring) Free(prod, cons uint32) uint32 { return r.mask - r.Used(prod, cons) }

// LoadProducer reads the producer index with acquire: entries before it are
// visible.
func (r *Ring) LoadProducer() uint32 { return r.prod.Load() & r.mask }

// StoreProducer publishes entries before i with release.
func (r *Ring) StoreProducer(i uint32) { r.prod.Store(i & r.mask) }

// LoadConsumer reads the consumer index with acquire: slots before it may be
// overwritten.
func (r *Ring) LoadConsumer() uint32 { return r.cons.Load() & r.mask }

// StoreConsumer gives slots before i back with release.
func (r *Ring) StoreConsumer(i uint32) { r.cons.Store(i & r.mask) }

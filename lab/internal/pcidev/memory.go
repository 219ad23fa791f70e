//go:build linux

package pcidev

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs/lab/vfiouser"
)

const page = 4096 // of views: a card requires it of this machine

// Map maps length bytes of the guest from offset off of a list of pages of size bytes on. The first
// byte of the view is at offset base of the pages. A page may be larger than the memory (the kernel's
// ib_umem_find_best_pgsz chooses the largest size that fits), so that only these bytes need be the
// guest's.
func Map(m *vfiouser.Memory, pages []uint64, size, off, length uint64) (v *vfiouser.View, mem []byte, base uint64, err error) {
	base, end := Around(off, length)
	if v, err = m.Part(pages, size, base, end-base); err != nil {
		return nil, nil, 0, err
	}
	return v, v.Bytes()[off-base:][:length], base, nil
}

// Around returns the range of this machine's pages around length bytes at an offset.
func Around(off, length uint64) (base, end uint64) {
	return off &^ (page - 1), (off + length + page - 1) &^ (page - 1)
}

// Ring is a queue in the guest's memory. The number of entries is a power of two, so that an index modulo
// that number names an entry.
type Ring struct {
	View   *vfiouser.View // nil when it has been unmapped
	Mem    []byte         // of the entries
	Start  int            // offset of Mem in View
	Count  uint32
	Stride int
}

// At returns entry i modulo the number of entries.
func (r *Ring) At(i uint32) []byte {
	o := int(i&(r.Count-1)) * r.Stride
	return r.Mem[o : o+r.Stride]
}

// Word returns the word at an offset in an entry. A card stores the one with the owner bit last, as
// the driver takes the entry once it sees the bit.
func (r *Ring) Word(i uint32, off int) *atomic.Uint32 {
	return r.View.Word(r.Start + int(i&(r.Count-1))*r.Stride + off)
}

// Round returns the number of times, modulo 2, that index i has been around the ring.
func (r *Ring) Round(i uint32) uint32 { return i / r.Count & 1 }

// BigEndian turns a word of a big-endian card, as it is in memory, into its value, and back.
func BigEndian(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return binary.BigEndian.Uint32(b[:])
}

// LittleEndian is BigEndian for words of a little-endian card.
func LittleEndian(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return binary.LittleEndian.Uint32(b[:])
}

// Unmap unmaps the ring.
func (r *Ring) Unmap() {
	if r.View != nil {
		r.View.Close()
	}
	r.View, r.Mem = nil, nil
}

// Physical is all memory of a guest, for keys of physical addresses. It is mapped when it is first
// needed.
type Physical struct {
	mu   sync.Mutex
	view *vfiouser.View
}

// PhysicalSize is the end of the guest's memory that physical keys reach.
const PhysicalSize = 1 << 40

// Bytes returns the memory: an address is an index.
func (p *Physical) Bytes(m *vfiouser.Memory) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view == nil {
		v, err := m.All(PhysicalSize)
		if err != nil {
			return nil, err
		}
		p.view = v
	}
	return p.view.Bytes(), nil
}

// Unmap unmaps the memory. No key may use it any more.
func (p *Physical) Unmap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view != nil {
		p.view.Close()
		p.view = nil
	}
}

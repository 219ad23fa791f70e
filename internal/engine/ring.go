package engine

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs/abi"
)

const (
	ringHeader  = int(unsafe.Sizeof(abi.RxeQueueBuf{}))
	sendWQESize = int(unsafe.Sizeof(abi.RxeSendWqe{}))
	recvWQESize = int(unsafe.Sizeof(abi.RxeRecvWqe{}))
	sgeSize     = int(unsafe.Sizeof(abi.RxeSge{}))
	cqeSize     = int(unsafe.Sizeof(abi.IbUverbsWc{}))
	minElem     = 64 // rxe pads elements to a cache line
)

// Ring is a queue in memory that the program shares: struct rxe_queue_buf, and elements
// whose size and number are powers of two. The program may write anything at any time, so
// the engine relies on its own copies of sizes and of its index.
type Ring struct {
	mem   []byte
	mask  uint32
	shift uint32
	size  int            // used bytes of an element
	index uint32         // the engine's index: of the producer in a CQ, else of the consumer
	prod  *atomic.Uint32 // shared words
	cons  *atomic.Uint32
	dests []Destination // of the send queue of a QP with Dynamic, by index
}

func newRing(elems, elemSize int) *Ring {
	slots := 1 << bits.Len(uint(elems)) // at least elems + 1
	shift := bits.Len(uint(max(elemSize, minElem)) - 1)
	words := make([]uint64, (ringHeader+slots<<shift)/8) // aligned to 8 bytes
	base := unsafe.Pointer(unsafe.SliceData(words))
	hdr := (*abi.RxeQueueBuf)(base)
	hdr.Log2ElemSize, hdr.IndexMask = uint32(shift), uint32(slots-1)
	return &Ring{
		mem:  unsafe.Slice((*byte)(base), len(words)*8),
		mask: uint32(slots - 1), shift: uint32(shift), size: elemSize,
		prod: (*atomic.Uint32)(unsafe.Pointer(&hdr.ProducerIndex)),
		cons: (*atomic.Uint32)(unsafe.Pointer(&hdr.ConsumerIndex)),
	}
}

// elem returns element i modulo the number of elements.
func (r *Ring) elem(i uint32) []byte {
	off := ringHeader + int(i&r.mask)<<r.shift
	return r.mem[off : off+r.size]
}

func (r *Ring) sendWQE(i uint32) *abi.RxeSendWqe {
	return (*abi.RxeSendWqe)(unsafe.Pointer(&r.elem(i)[:sendWQESize][0]))
}

func (r *Ring) recvWQE(i uint32) *abi.RxeRecvWqe {
	return (*abi.RxeRecvWqe)(unsafe.Pointer(&r.elem(i)[:recvWQESize][0]))
}

func (r *Ring) cqe(i uint32) *abi.IbUverbsWc {
	return (*abi.IbUverbsWc)(unsafe.Pointer(&r.elem(i)[:cqeSize][0]))
}

// sge returns SGE n of the list that begins at offset off of element i.
func (r *Ring) sge(i uint32, off, n int) abi.RxeSge {
	return *(*abi.RxeSge)(unsafe.Pointer(&r.elem(i)[off+n*sgeSize:][:sgeSize][0]))
}

func (r *Ring) next(i uint32) uint32 { return (i + 1) & r.mask }

// producer returns the program's producer index.
func (r *Ring) producer() uint32 { return r.prod.Load() & r.mask }

// used returns the number of elements from the engine's consumer index.
func (r *Ring) used() int { return int((r.producer() - r.index) & r.mask) }

// consume frees the element at the engine's consumer index.
func (r *Ring) consume() {
	r.index = r.next(r.index)
	r.cons.Store(r.index)
}

// reset forgets all elements, also those that the program adds at the time.
func (r *Ring) reset() {
	clear(r.mem[ringHeader:])
	r.index = r.producer()
	r.cons.Store(r.index)
}

// full reports whether no element can be produced.
func (r *Ring) full() bool { return (r.index+1-r.cons.Load())&r.mask == 0 }

// produced returns the number of elements that the program has not consumed.
func (r *Ring) produced() int { return int((r.index - r.cons.Load()) & r.mask) }

// produce publishes the element at the engine's producer index.
func (r *Ring) produce() {
	r.index = r.next(r.index)
	r.prod.Store(r.index)
}

// moveTo copies the elements between cons and prod to the empty ring to.
func (r *Ring) moveTo(to *Ring, cons, prod uint32) (n uint32) {
	for ; cons != prod; cons = r.next(cons) {
		copy(to.elem(n), r.elem(cons))
		n++
	}
	return n
}

// Bytes returns the memory of the ring, header included.
func (r *Ring) Bytes() []byte { return r.mem }

// Cap returns the largest number of elements that the ring holds.
func (r *Ring) Cap() int { return int(r.mask) }

package softroce

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Sizes of the elements that queues hold.
var (
	sgeSize    = len(mmap.Bytes(new(abi.RxeSge)))
	sendSize   = len(mmap.Bytes(new(abi.RxeSendWqe)))
	recvSize   = len(mmap.Bytes(new(abi.RxeRecvWqe)))
	wcSize     = len(mmap.Bytes(new(abi.IbUverbsWc)))
	headerSize = len(mmap.Bytes(new(abi.RxeQueueBuf)))
)

// ring is a mapped queue: a header with the indices of both sides, and 2^n slots. One
// slot stays empty.
type ring struct {
	region *mmap.Region
	header *abi.RxeQueueBuf
	slots  []byte
	size   int // of a slot
	mask   uint32
	index  uint32 // of this side; the header has a copy
}

// mapRing maps the queue that the kernel describes, whose slots hold elem bytes. The index
// is that of the producer until the caller changes it.
func mapRing(dev *provider.Device, mi *abi.Mminfo, elem int) (ring, error) {
	region, err := mmap.Map(dev.FD, int64(mi.Offset), int(mi.Size))
	if err != nil {
		return ring{}, err
	}
	if mem := region.Bytes(); len(mem) >= headerSize {
		h := &mmap.Slice[abi.RxeQueueBuf](mem, 0, 1)[0]
		r := ring{region: region, header: h, slots: mem[headerSize:], size: 1 << (h.Log2ElemSize & 31), mask: h.IndexMask}
		r.index = r.producer()
		if r.size >= elem && r.mask&(r.mask+1) == 0 && (uint64(r.mask)+1)*uint64(r.size) <= uint64(len(r.slots)) {
			return r, nil
		}
	}
	region.Close()
	return ring{}, fmt.Errorf("softroce: queue of %d bytes is malformed", mi.Size)
}

func (r *ring) producer() uint32 { return atomic.LoadUint32(&r.header.ProducerIndex) & r.mask }
func (r *ring) consumer() uint32 { return atomic.LoadUint32(&r.header.ConsumerIndex) & r.mask }

// publish passes filled slots up to index to the kernel, and consume empty ones.
func (r *ring) publish() { atomic.StoreUint32(&r.header.ProducerIndex, r.index) }
func (r *ring) consume() { atomic.StoreUint32(&r.header.ConsumerIndex, r.index) }

// advance returns the index after i.
func (r *ring) advance(i uint32) uint32 { return (i + 1) & r.mask }

// full reports whether a producer at i has no slot left.
func (r *ring) full(i uint32) bool { return r.advance(i) == r.consumer() }

func (r *ring) slot(i uint32) []byte { return r.slots[int(i)*r.size:][:r.size] }

// replace maps the queue to which the kernel has moved the elements of r.
func (r *ring) replace(dev *provider.Device, mi *abi.Mminfo, elem int) error {
	fresh, err := mapRing(dev, mi, elem)
	if err != nil {
		return err
	}
	r.region.Close()
	*r = fresh
	return nil
}

// putSGL writes a list after an element, and returns the length of the data.
func putSGL(slot []byte, size int, sgl []verbs.SGE) (length uint64) {
	out := mmap.Slice[abi.RxeSge](slot, size, len(sgl))
	for i, s := range sgl {
		out[i] = abi.RxeSge{Addr: s.Addr, Length: s.Length, Lkey: s.LKey}
		length += uint64(s.Length)
	}
	return length
}

package provider

import (
	"math/bits"
	"os"
	"sync"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// What drivers share whose queues are memory of the process, which the kernel pins for the device.

// MinRecord is the least distance of doorbell records. No two share a cache line: the device reads
// one while a processor writes another.
const MinRecord = 64

// Records hands out doorbell records. The context frees its pages.
type Records struct {
	Size int // distance of records, at least MinRecord; a power of two

	mu    sync.Mutex
	pages []*mmap.Buffer
	free  [][]byte
}

// Get returns a zeroed record.
func (r *Records) Get() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 {
		b, err := mmap.NewBuffer(os.Getpagesize(), mmap.BufferOptions{})
		if err != nil {
			return nil, err
		}
		r.pages = append(r.pages, b)
		for m := b.Bytes(); len(m) >= r.Size; m = m[r.Size:] {
			r.free = append(r.free, m[:r.Size:r.Size])
		}
	}
	n := len(r.free) - 1
	record := r.free[n]
	r.free = r.free[:n]
	clear(record)
	return record, nil
}

// Put takes back a record that the device has ceased to use. record may be nil.
func (r *Records) Put(record []byte) {
	if record == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, record)
}

// Free returns how many records can be had without another page.
func (r *Records) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free)
}

// Close frees the pages.
func (r *Records) Close() {
	for _, b := range r.pages {
		b.Close()
	}
}

// Pins returns the most locked memory, for [UHW.Pins], that a queue of n bytes takes. The kernel pins
// and counts whole pages for each buffer (ib_umem_get); queues that shared a page would count it
// twice. A page of doorbell records counts once, whoever uses it.
func Pins(n int) int { return int(sys.WholePages(uint64(n))) + os.Getpagesize() }

// RoundUp rounds up to a power of two.
func RoundUp(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

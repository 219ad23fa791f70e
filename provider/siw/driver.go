// Package siw drives the queues of SoftiWARP, the kernel's siw: iWARP over TCP.
//
//	Post ──► SQE in the mapped array ──► its valid flag (release) ──► doorbell
//	                                                                     │
//	Poll ◄── valid flag cleared ◄── CQE in the mapped array ◄──────── siw
//
// Queues are plain arrays (uAPI siw-abi.h) without index words: each side counts for itself, and
// the flags of an element show which side owns it. The word that arms a CQ follows its array, so
// arming makes no system call. A doorbell is needed only if the kernel may have run out of work:
// while the previous request is still waiting, the kernel will find the new ones by itself.
//
// The kernel's siw ignores requests that are posted to a QP in the error state. This
// package completes them as flushed, as other kernel drivers do.
package siw

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Driver is the [provider.Driver] for siw.
type Driver struct{}

var _ provider.Driver = Driver{}

func (Driver) Name() string { return "siw" }
func (Driver) ID() uint32   { return abi.RDMA_DRIVER_SIW }

// GetContext implements [provider.Driver]. It passes memory for a response, which the
// kernel's driver requires.
func (Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	var resp abi.SiwUrespAllocCtx
	return context{dev}, get(provider.UHW{Out: mmap.Bytes(&resp)})
}

// ImportContext implements [provider.Driver].
func (Driver) ImportContext(dev *provider.Device, _ func(provider.UHW) error) (provider.Context, error) {
	return context{dev}, nil
}

// context is an open device.
type context struct{ dev *provider.Device }

// Release does nothing.
func (context) Release() {}

// array is a mapped queue whose length is a power of two. Indices grow without end and
// are taken modulo the length.
type array[T any] struct {
	region *mmap.Region
	slots[T]
}

// slots are the elements of an array. Loops copy it so that it stays in registers.
type slots[T any] struct {
	base unsafe.Pointer
	mask uint32
}

// mapArray maps n elements and extra bytes after them.
func mapArray[T any](dev *provider.Device, key uint64, n uint32, extra uintptr) (array[T], error) {
	var elem T
	// SIW_INVAL_UOBJ_KEY is not checked: it is also the key of the 145th page that a context maps.
	if n == 0 || n&(n-1) != 0 {
		return array[T]{}, fmt.Errorf("siw: queue of %d elements", n)
	}
	region, err := mmap.Map(dev.FD, int64(key), int(uintptr(n)*unsafe.Sizeof(elem)+extra))
	if err != nil {
		return array[T]{}, err
	}
	return array[T]{region, slots[T]{unsafe.Pointer(unsafe.SliceData(region.Bytes())), n - 1}}, nil
}

func (s slots[T]) at(i uint32) *T {
	var elem T
	return (*T)(unsafe.Add(s.base, uintptr(i&s.mask)*unsafe.Sizeof(elem)))
}

// The flags of an element share a 32-bit word with fields that are written with them.
func sqeWord(e *abi.SiwSqe) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&e.Flags)) }
func rqeWord(e *abi.SiwRqe) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&e.Flags)) }
func cqeWord(e *abi.SiwCqe) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&e.Flags)) }

// word packs the 16-bit flags and the fields that follow them. It does not pack them in
// memory, where a load of a word that was stored in parts takes 4 ns.
func word(flags uint16, numSGE, opcode uint8) uint32 {
	if cpu.IsBigEndian {
		return uint32(flags)<<16 | uint32(numSGE)<<8 | uint32(opcode)
	}
	return uint32(flags) | uint32(numSGE)<<16 | uint32(opcode)<<24
}

// isValid reports whether a word marks its element as filled.
func isValid(w uint32) bool { return w&validWord() != 0 }

func validWord() uint32 { return word(abi.SIW_WQE_VALID, 0, 0) }

// A batch is published by its first element, filled last, with release: the kernel reads
// no element before it has taken the preceding ones. One such store, which costs as much
// as writing an element, is enough.

func fillSqe(e *abi.SiwSqe, word uint32) { *(*uint32)(unsafe.Pointer(&e.Flags)) = word }
func fillRqe(e *abi.SiwRqe, word uint32) { *(*uint32)(unsafe.Pointer(&e.Flags)) = word }

// MaxInline implements [provider.InlineLimiter].
func (context) MaxInline() int { return maxInline }

// AllocPD adds no driver's part.
func (context) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return nil, alloc(provider.UHW{})
}

// CreateCQ makes a CQ and maps its queue.
func (c context) CreateCQ(init *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	var resp abi.SiwUrespCreateCq
	if _, err := create(provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return nil, err
	}
	a, err := mapArray[abi.SiwCqe](c.dev, resp.CqKey, resp.NumCqe, unsafe.Sizeof(abi.SiwCqCtrl{}))
	if err != nil {
		return nil, err
	}
	return newCompletionQueue(a, init), nil
}

// CreateQP makes a QP and maps its queues.
func (c context) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	sends, recvs := init.Cap.MaxSendWR, init.Cap.MaxRecvWR
	// Sends have a second spare element, for nudge.
	init.Cap.MaxSendWR, init.Cap.MaxRecvWR = withSpare(withSpare(sends)), withSpare(recvs)
	init.Cap.MaxSendSGE = max(init.Cap.MaxSendSGE, 2) // see needsSecondSGE
	var resp abi.SiwUrespCreateQp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, nil, err
	}
	sa, err := mapArray[abi.SiwSqe](c.dev, resp.SqKey, resp.NumSqe, 0)
	if err != nil {
		return nil, nil, err
	}
	sq, err := newSendQueue(sa, sends, init, info, c.dev)
	if err != nil {
		return nil, nil, err
	}
	if init.SRQ != nil {
		return sq, nil, nil
	}
	if resp.NumRqe == 0 { // nothing to map: it is always full
		sq.recv = newRecvQueue(array[abi.SiwRqe]{}, 0, init, info, c.dev)
		return sq, sq.recv, nil
	}
	ra, err := mapArray[abi.SiwRqe](c.dev, resp.RqKey, resp.NumRqe, 0)
	if err != nil {
		sq.Release()
		return nil, nil, err
	}
	sq.recv = newRecvQueue(ra, recvs, init, info, c.dev)
	return sq, sq.recv, nil
}

// withSpare returns the size to request so that a queue of n elements has a spare one. siw_sq_flush
// and siw_rq_flush (Linux 6.1 to 7.2) mark each element as free twice. A request that is posted
// into it in between would never complete. So an element is used again only after the kernel has
// moved on to the next. Queues of the greatest size have no spare element.
func withSpare(n int) int {
	const maxQPWR = 1 << 15 // SIW_MAX_QP_WR
	if n == 0 || n == maxQPWR {
		return n
	}
	return n + 1
}

// CreateSRQ makes an SRQ and maps its queue.
func (c context) CreateSRQ(_ *provider.SRQInit, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	var resp abi.SiwUrespCreateSrq
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	a, err := mapArray[abi.SiwRqe](c.dev, resp.SrqKey, resp.NumRqe, 0)
	if err != nil {
		return nil, err
	}
	return newSRQ(a, info, c.dev), nil
}

// CreateAH lets the kernel refuse: iWARP has no datagrams.
func (context) CreateAH(_ *provider.AHInit, create func(provider.UHW) error) (uint32, provider.Object, error) {
	return 0, nil, create(provider.UHW{})
}

// RegisterMR chooses the part of the key that iWARP leaves to the consumer. It refuses
// addresses other than that of the memory, which siw's kernel side accepts and ignores.
func (context) RegisterMR(init *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	if init.IOVA != init.Start || init.Access&abi.IB_UVERBS_ACCESS_ZERO_BASED != 0 {
		return nil, fmt.Errorf("siw has no IOVA: a region has the address of its memory: %w", syscall.EOPNOTSUPP)
	}
	req := abi.SiwUreqRegMr{StagKey: uint8(rand.Uint32())}
	var resp abi.SiwUrespRegMr
	return nil, register(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp)})
}

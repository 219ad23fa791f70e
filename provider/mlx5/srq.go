package mlx5

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// shared is the part of a recvQueue that only SRQs have. The receives of an SRQ are a list, which
// the device follows: each begins with the index of the next (struct mlx5_wqe_srq_next_seg of
// srq.h). So the last one is never posted. Receives complete in any order, as messages of several
// QPs take them.
//
//	  taken ◄── Poll pushes completed receives
//	    │
//	    ▼ Post takes all of them when the list is used up
//	list: first ─► ... ─► last
type shared struct {
	ctx    *context
	buf    *mmap.Buffer
	record []byte
	first  uint32 // of the list: the next receive to post; only Post uses these three
	last   uint32
	posted uint32

	// next has the place of each receive: inFlight or listed, or, in taken, the index of the one
	// that was pushed before it, plus 1, or 0.
	next  []atomic.Uint32
	taken atomic.Uint32 // index of the receive pushed last, plus 1; 0 if there is none
}

const (
	srqNextSize  = 16
	srqNextIndex = 2 // next_wqe_index

	inFlight = 1<<32 - 1
	listed   = 1<<32 - 2
)

// CreateSRQ makes an SRQ. The request has neither its size nor the size of a receive: the kernel
// computes both like this function (create_srq_user, mlx5_ib_create_srq), and pins as much memory.
func (c *context) CreateSRQ(init *provider.SRQInit, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	const minStride = 32
	stride := max(minStride, provider.RoundUp(srqNextSize+segmentSize*init.MaxSGE))
	if init.MaxWR > c.bounds.srqRecvs || init.MaxSGE > maxUnits || stride > c.bounds.recvBytes {
		return nil, syscall.EINVAL // package uverbs names the limit, which the device's attributes have
	}
	n := provider.RoundUp(init.MaxWR + 1)
	s := &shared{ctx: c, last: uint32(n - 1), next: make([]atomic.Uint32, n)}
	var err error
	if s.buf, err = mmap.NewBuffer(n*stride, mmap.BufferOptions{}); err != nil {
		return nil, err
	}
	if s.record, err = c.records.Get(); err != nil {
		s.release()
		return nil, err
	}
	req := abi.Mlx5IbCreateSrq{BufAddr: s.buf.Addr(), DbAddr: mmap.Addr(s.record)}
	var resp abi.Mlx5IbCreateSrqResp
	info, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: provider.Pins(n * stride)})
	if err != nil {
		s.release()
		return nil, err
	}
	q := &recvQueue{
		shared: s,
		base:   unsafe.Pointer(unsafe.SliceData(s.buf.Bytes())), stride: uintptr(stride), mask: uint32(n - 1), most: uint32(n - 1),
		record: mmap.Word(s.record, recvWord), ids: make([]uint64, n),
	}
	q.InitShared(c.dev, info.Handle, init.MaxSGE)
	for i := range uint32(n) {
		s.next[i].Store(listed)
		q.link(i, (i+1)&q.mask)
	}
	return q, nil
}

func (s *shared) release() {
	s.buf.Close()
	s.ctx.records.Put(s.record)
}

// entry returns the memory of receive i.
func (q *recvQueue) entry(i uint32) unsafe.Pointer {
	return unsafe.Add(q.base, uintptr(i&q.mask)*q.stride)
}

// link makes receive to follow receive i.
func (q *recvQueue) link(i, to uint32) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Add(q.entry(i), srqNextIndex))[:], uint16(to))
}

// following returns the receive after i. The device only reads these links.
func (q *recvQueue) following(i uint32) uint32 {
	return uint32(binary.BigEndian.Uint16((*[2]byte)(unsafe.Add(q.entry(i), srqNextIndex))[:])) & q.mask
}

func (q *recvQueue) postShared(wrs []verbs.RecvWR) (n int, err error) {
	s := q.shared
	for ; n < len(wrs); n++ {
		if s.first == s.last && !q.takeBack() {
			err = verbs.ErrQueueFull
			break
		}
		i := s.first
		if err = q.encode(q.entry(i), srqNextSize, wrs[n].SGL); err != nil {
			break
		}
		q.ids[i] = wrs[n].ID
		s.next[i].Store(inFlight) // Poll finds the ID
		s.first = q.following(i)
	}
	if n > 0 {
		s.posted += uint32(n)
		q.publish(s.posted)
	}
	return n, err
}

// takeBack appends the completed receives to the list, and reports whether there were any.
func (q *recvQueue) takeBack() bool {
	s := q.shared
	i := s.taken.Swap(0)
	if i == 0 {
		return false
	}
	for i != 0 {
		at := i - 1
		i = s.next[at].Load()
		s.next[at].Store(listed)
		q.link(s.last, at)
		s.last = at
	}
	return true
}

// completeShared is complete for an SRQ. Several CQs may call it at once.
func (q *recvQueue) completeShared(index uint16) (id uint64, ok bool) {
	s, i := q.shared, int(index)
	if i >= len(s.next) || s.next[i].Load() != inFlight {
		return 0, false
	}
	id = q.ids[i]
	if !s.next[i].CompareAndSwap(inFlight, listed) {
		return 0, false
	}
	for {
		first := s.taken.Load()
		s.next[i].Store(first)
		if s.taken.CompareAndSwap(first, uint32(i)+1) {
			return id, true
		}
	}
}

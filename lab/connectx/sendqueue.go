//go:build linux

package connectx

import (
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// Send requests (WQEs) are a control segment and others that depend on the opcode, in units of 16
// bytes, and begin at blocks of 64 (mlx5_ib's wr.c, libmlx5's qp.c).
const (
	maxSGEs = 62 // of a request: its size has 6 bits, of which the control segment takes one

	segment   = 16
	sendBlock = 64
	maxWQE    = (maxSGEs + 1) * segment

	ctrlOpcode = 3 // behind the modifier and the index
	ctrlIndex  = 1
	ctrlQPNDS  = 4
	ctrlFlags  = 11 // fm_ce_se
	ctrlImm    = 12
)

// request copies the request of a send queue at an index, behind which the guest has posted blocks,
// and returns its size, or 0 if it is larger than that or than the queue. The copy is what is
// checked: the guest may go on to write.
func (r *ring) request(wqe *[maxWQE]byte, index, blocks uint16) int {
	copy(wqe[:], r.at(uint32(index)))
	size := int(be.Uint32(wqe[ctrlQPNDS:])&0x3f) * segment
	if size == 0 || uint32(blocks) > r.count || size > int(blocks)*sendBlock {
		return 0
	}
	for done := sendBlock; done < size; done += sendBlock {
		copy(wqe[done:], r.at(uint32(index)+uint32(done/sendBlock))) // wraps around
	}
	return size
}

// blocksOf returns the number of blocks that a request of size bytes takes.
func blocksOf(size int) uint16 { return uint16((size + sendBlock - 1) / sendBlock) }

// Keys with a meaning of their own.
const (
	reservedLKey  = 0x100
	nullMKey      = 0x200
	terminateLKey = 0x300
)

// The engine's ID of a request is its counter, and the opcode of a send request.
const idOpcode = 32

func sendID(counter uint16, opcode byte) uint64 { return uint64(opcode)<<idOpcode | uint64(counter) }

// shown is the part of a send queue that doorbells have shown. The doorbell record may be ahead: it
// also counts requests whose BlueFlame stores are yet to come.
type shown struct {
	mu       sync.Mutex
	closed   bool              // the queue's memory is gone
	end      uint16            // index behind the last request
	recorded uint16            // index behind the last request that was given to the recorder
	copies   map[uint16][]byte // requests that came by BlueFlame, by their index
}

const maxCopies = 16 // of a queue: others are read from memory

// ring takes a doorbell of a queue.
func (s *shown) ring(b []byte, one bool, r *ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	record := uint16(r.posted(sendRecord))
	index := be.Uint16(b[ctrlIndex:])
	end := index + uint16(requestBlocks(b))
	switch {
	case !one, end == index, int16(record-end) < 0:
		s.end = record
	case int16(index-s.end) >= 0:
		s.end = end
		if len(b) >= sendBlock && len(s.copies) < maxCopies {
			if s.copies == nil {
				s.copies = map[uint16][]byte{}
			}
			s.copies[index] = b
		}
	}
}

func (s *shown) to() uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// use replaces a request that has been read from memory by its copy, if there is one. Both must
// agree, but for the completion that the copy may ask for: by that mlx5_core finds out which of
// them is executed (wc.c). It reports false if they do not.
func (s *shown) use(index uint16, wqe []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.copies[index]
	if b == nil {
		return true
	}
	delete(s.copies, index)
	for i := range min(len(wqe), len(b)) {
		if diff := wqe[i] ^ b[i]; diff != 0 && (i != ctrlFlags || diff&^ifc.WqeCtrlCqUpdateAndEqe != 0) {
			return false
		}
	}
	return copy(wqe, b) == len(wqe)
}

func (s *shown) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end, s.recorded, s.copies = 0, 0, nil
}

const flameSize = 1 << logRegister / 2

// requestBlocks returns the size of a request that fits in a register, of which b is the start, or
// 0.
func requestBlocks(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	n := int(blocksOf(int(b[7]&0x3f) * segment))
	if n*sendBlock > flameSize {
		return 0
	}
	return n
}

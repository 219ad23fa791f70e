//go:build linux

package connectx

import (
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// A send request (WQE) is a control segment and segments that depend on the opcode, in units of 16
// bytes. It begins at a block of 64 bytes (mlx5_ib's wr.c, libmlx5's qp.c).
const (
	maxSGEs = 62 // the size of a request has 6 bits, and counts the control segment

	segment   = 16
	sendBlock = 64 // MLX5_SEND_WQE_BB
	maxWQE    = (maxSGEs + 1) * segment

	// struct mlx5_wqe_ctrl_seg
	ctrlIndex  = 1
	ctrlOpcode = 3
	ctrlQPNDS  = 4  // number of the QP in the upper 24 bits, size in the lower 6
	ctrlFlags  = 11 // fm_ce_se
	ctrlImm    = 12
)

// request copies the request at an index of a send queue, where the guest has posted blocks, and
// returns its size, or 0 if it takes more blocks than those or the queue has. Callers check and use the
// copy alone: the guest may still write to its memory.
func (r *ring) request(wqe *[maxWQE]byte, index, blocks uint16) int {
	copy(wqe[:], r.At(uint32(index)))
	size := int(be.Uint32(wqe[ctrlQPNDS:])&0x3f) * segment
	if size == 0 || uint32(blocks) > r.Count || size > int(blocks)*sendBlock {
		return 0
	}
	for done := sendBlock; done < size; done += sendBlock {
		copy(wqe[done:], r.At(uint32(index)+uint32(done/sendBlock))) // a request may wrap around
	}
	return size
}

// blocksOf returns the number of blocks that a request of size bytes takes.
func blocksOf(size int) uint16 { return uint16((size + sendBlock - 1) / sendBlock) }

// Keys with a meaning of their own, which QUERY_SPECIAL_CONTEXTS reports. Drivers end a list of data
// segments by reservedLKey (MLX5_INVALID_LKEY of libmlx5, MLX5_TERMINATE_SCATTER_LIST_LKEY of Linux), as
// the adapter lacks the capability terminate_scatter_list_mkey, with which they would take terminateLKey.
const (
	reservedLKey  = 0x100
	nullMKey      = 0x200
	terminateLKey = 0x300
)

// The engine's ID of a request is its counter, with the opcode of a send request above.
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

const maxCopies = 16 // of a queue: other requests are read from memory

// doorbell handles a doorbell of queue r, of which b is the start of a request or all of it. A plain doorbell
// shows all requests that the doorbell record counts; one that is a copy of a request shows the
// requests up to that one, as the copies of later ones may be on their way.
func (s *shown) doorbell(b []byte, one bool, r *ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	record := uint16(r.posted(sendRecord))
	index := be.Uint16(b[ctrlIndex:])
	end := index + uint16(requestBlocks(b))
	switch {
	// A plain doorbell; a size that is 0, or more than a register has; or a request that the driver has
	// not counted yet, though it does so before it rings (mlx5_ib's mlx5r_ring_db).
	case !one, end == index, int16(record-end) < 0:
		s.end = record
	case int16(index-s.end) >= 0: // not shown before
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

// use replaces a request from memory by its BlueFlame copy, if there is one. It reports false if they
// differ in more than the request for a completion, by which mlx5_core tests whether the adapter
// executes the copy (wc.c, mlx5_wc_post_nop).
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

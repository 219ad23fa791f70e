//go:build linux

package connectx

import (
	"sync"
	"time"
)

// A store of 8 bytes to the start of a send queue's register is a doorbell. BlueFlame stores the
// whole request there, in steps of 64 bytes, so that an adapter need not read it from memory. Drivers
// use the two halves of a register in turn, so that the second is not combined with the first; here
// each half counts as a register.
//
// A hypervisor passes stores on in parts of 8 bytes, and nothing in the first one tells whether others
// follow. So a register waits for the rest of a request if it got the rest of its last one. If that
// does not come in time, or comes in another order, the store was a doorbell: the request is read from
// memory, where it is in any case.
type blueFlame struct {
	d    *Device
	wait time.Duration // for the rest of a request

	mu        sync.Mutex
	registers map[uint32]*register // by UAR and offset
}

// register is half of one.
type register struct {
	uar   uint32
	start []byte // of a request whose rest is awaited, or nil
	rung  bool   // the last store was a doorbell that was executed
	whole bool   // the last request was stored whole
	timer *time.Timer
}

const (
	logRegister = 9 // capability log_bf_reg_size: of both halves
	flameSize   = 1 << logRegister / 2
	flameWait   = 500 * time.Microsecond
)

// store takes a store to a register of send queues.
func (f *blueFlame) store(uar uint32, off int, b []byte) {
	f.mu.Lock()
	key, at := uar<<12|uint32(off)&^(flameSize-1), off&(flameSize-1)
	r := f.registers[key]
	if r == nil {
		if f.registers == nil {
			f.registers = map[uint32]*register{}
		}
		r = &register{uar: uar}
		f.registers[key] = r
	}
	type doorbell struct {
		b   []byte
		one bool // request, however many the doorbell record shows
	}
	var ring []doorbell
	if r.start != nil && at != len(r.start) {
		ring = append(ring, doorbell{r.give(false)[:8], true})
	}
	switch {
	case at == 0 && len(b) >= 8:
		if requestBlocks(b) > 0 && (r.whole || len(b) > 8) {
			r.start = append(make([]byte, 0, flameSize), b...)
			r.timer = time.AfterFunc(f.wait, func() { f.expire(r) })
		} else {
			r.rung = true
			ring = append(ring, doorbell{append([]byte(nil), b[:8]...), false})
		}
	case r.start != nil:
		r.start = append(r.start, b...)
		r.timer.Reset(f.wait)
	case at == 8: // of a request that has been executed
		r.whole, r.rung = r.rung, false
	}
	if n := requestBlocks(r.start) * sendBlock; n > 0 && len(r.start) >= n {
		ring = append(ring, doorbell{r.give(true)[:n], true})
	}
	f.mu.Unlock()
	for _, d := range ring {
		f.d.send(uar, d.b, d.one)
	}
}

// requestBlocks returns the size of a request that fits in a register, of which b is the start, or 0.
func requestBlocks(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	n := (int(b[7]&0x3f)*segment + sendBlock - 1) / sendBlock
	if n*sendBlock > flameSize {
		return 0
	}
	return n
}

// give returns what has been stored.
func (r *register) give(whole bool) []byte {
	b := r.start
	r.timer.Stop()
	r.start, r.whole, r.rung = nil, whole, !whole
	return b
}

// expire rings the doorbell that the start of a request was.
func (f *blueFlame) expire(r *register) {
	f.mu.Lock()
	var b []byte
	if r.start != nil {
		b = r.give(false)
	}
	f.mu.Unlock()
	if b != nil {
		f.d.send(r.uar, b[:8], true)
	}
}

func (f *blueFlame) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.registers {
		if r.start != nil {
			r.give(false)
		}
	}
	f.registers = nil
}

// send executes a doorbell, which is the start of a request or all of it: of that one alone, or of
// all that the doorbell record shows.
func (d *Device) send(uar uint32, b []byte, one bool) {
	num := be.Uint32(b[ctrlQPNDS:]) >> 8
	// A queue of another UAR is another process's.
	if q, ok := d.eth.sqs.get(num); ok && q.uar == uar {
		d.eth.ring(q, b, one)
	} else if q, ok := d.t.qps.get(num); ok && q.uar == uar && q.sq.count > 0 {
		q.ring(b, one)
	}
}

func (q *qp) ring(b []byte, one bool) {
	q.shown.ring(b, one, &q.sq)
	q.snapshot()
	q.e.Doorbell() // it is ignored before RTS
}

// shown is what doorbells have shown of a send queue. A driver that is ahead of its stores has more in
// its doorbell record, whose requests may have copies yet to come.
type shown struct {
	mu     sync.Mutex
	closed bool              // the queue's memory is gone
	end    uint16            // index behind the last request
	copies map[uint16][]byte // that came by BlueFlame, by the request's index
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

// use replaces a request that has been read from memory by its copy, if there is one. Both must agree,
// but for the completion that the copy may ask for: by that mlx5_core finds out which of them is
// executed (wc.c). It reports false if they do not.
func (s *shown) use(index uint16, wqe []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.copies[index]
	if b == nil {
		return true
	}
	delete(s.copies, index)
	for i := range min(len(wqe), len(b)) {
		if diff := wqe[i] ^ b[i]; diff != 0 && (i != ctrlFlags || diff&^wqeCtrlCqUpdateAndEqe != 0) {
			return false
		}
	}
	return copy(wqe, b) == len(wqe)
}

func (s *shown) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end, s.copies = 0, nil
}

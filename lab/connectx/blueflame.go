//go:build linux

package connectx

import (
	"sync"
	"time"
)

// A store of 8 bytes to the start of a send queue's register is a doorbell. BlueFlame stores the
// whole request there, in steps of 64 bytes, so that an adapter need not read it from memory.
// Drivers use the two halves of a register in turn, so that the second is not combined with the
// first; here each half counts as a register.
//
// A hypervisor passes stores on in parts of 8 bytes, and nothing in the first one tells whether
// others follow. So a register waits for the rest of a request if it got the rest of its last one.
// If that does not come in time, or comes in another order, the store was a doorbell: the request
// is read from memory, where it is in any case.
type blueFlame struct {
	send func(uar uint32, b []byte, one bool) // executes a doorbell
	wait time.Duration                        // for the rest of a request

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

const flameWait = 500 * time.Microsecond

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
		f.send(uar, d.b, d.one)
	}
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
		f.send(r.uar, b[:8], true)
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

//go:build linux

package connectx

import (
	"sync"
	"time"
)

// blueFlame is the registers of send queues. A store of 8 bytes to the start of a register is a
// doorbell. BlueFlame stores the whole request there, in steps of 64 bytes, so that the adapter need not
// read it from memory. Drivers alternate between the two halves of a register, so that write combining
// does not join two requests; here each half counts as a register.
//
// The hypervisor passes stores on in parts of 8 bytes, and the first part of a request looks like a
// doorbell. A register guesses which it is from what came before:
//
//   - At first, and after a doorbell, it handles a first part as a doorbell at once. The request is read
//     from memory, where drivers write it in any case. If the rest follows after all, it is ignored, but
//     the register waits for the rest of the next request.
//   - After a request with its rest, it waits for the rest. If that does not come in time, or in another
//     order, the part was a doorbell. A doorbell has the start of the last request that it shows.
type blueFlame struct {
	send func(uar uint32, b []byte, one bool) // handles a doorbell: see Device.send
	wait time.Duration                        // for the rest of a request

	mu        sync.Mutex
	registers map[uint32]*register // by UAR and offset
}

// register is half a register.
type register struct {
	uar   uint32
	start []byte // of a request whose rest is yet to come, or nil
	rung  bool   // the last store was handled as a doorbell, and nothing has followed it
	whole bool   // the rest of the last request came, in time or not: wait for that of the next
	timer *time.Timer
}

const flameWait = 500 * time.Microsecond

const flameSize = 1 << logRegister / 2 // of half a register

// requestBlocks returns the number of blocks of the request that b begins, or 0 if that does not fit in
// a register.
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

// store handles a store to a register.
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
		one bool // limits it to one request
	}
	var ring []doorbell
	if r.start != nil && at != len(r.start) {
		ring = append(ring, doorbell{r.finish(false)[:8], true})
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
	case at == 8: // the rest of a request whose first part was handled as a doorbell
		r.whole, r.rung = r.rung, false
	}
	if n := requestBlocks(r.start) * sendBlock; n > 0 && len(r.start) >= n {
		ring = append(ring, doorbell{r.finish(true)[:n], true})
	}
	f.mu.Unlock()
	for _, d := range ring {
		f.send(uar, d.b, d.one)
	}
}

// finish ends a request and returns its bytes. whole tells whether these are all, or the first part of
// what was a doorbell.
func (r *register) finish(whole bool) []byte {
	b := r.start
	r.timer.Stop()
	r.start, r.whole, r.rung = nil, whole, !whole
	return b
}

// expire handles the start of a request as a doorbell when its rest has not come.
func (f *blueFlame) expire(r *register) {
	f.mu.Lock()
	var b []byte
	if r.start != nil {
		b = r.finish(false)
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
			r.finish(false)
		}
	}
	f.registers = nil
}

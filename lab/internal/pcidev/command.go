//go:build linux

package pcidev

import (
	"math/bits"
	"sync"
)

// Commands is the goroutine that executes a driver's commands one at a time, so that the guest's
// processor, which waits for each access to the BAR, does not wait for a command.
type Commands struct {
	Execute func(slot int) // executes the command in a slot of the card's queue
	Dead    func() bool    // the firmware answers no more; see Doorbell

	done    chan struct{} // closed when the goroutine has ended
	mu      sync.Mutex
	change  sync.Cond
	pending uint32 // slots whose bits have been set
	busy    bool   // a command is being executed, or Quiesce calls its argument
	ended   bool
}

// Begin starts the goroutine.
func (c *Commands) Begin() {
	c.done, c.change.L = make(chan struct{}), &c.mu
	go c.run()
}

// End ends the goroutine.
func (c *Commands) End() {
	c.mu.Lock()
	c.ended = true
	c.change.Broadcast()
	c.mu.Unlock()
	<-c.done
}

// Quiesce forgets the pending commands, and calls do while none is executed.
func (c *Commands) Quiesce(do func()) {
	c.mu.Lock()
	c.pending = 0
	for c.busy {
		c.change.Wait()
	}
	c.busy = true // nobody else executes
	c.mu.Unlock()
	do()
	c.mu.Lock()
	c.busy = false
	c.change.Broadcast()
	c.mu.Unlock()
}

// Doorbell makes the goroutine execute the commands whose bits are set. Without bits, it executes those
// that have waited for the firmware.
func (c *Commands) Doorbell(slots uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending |= slots
	c.change.Broadcast()
}

// Idle reports whether no command is executed or pending. What commands have written is visible then.
func (c *Commands) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending == 0 && !c.busy
}

func (c *Commands) run() {
	defer close(c.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for (c.pending == 0 || c.busy || c.Dead()) && !c.ended {
			c.change.Wait()
		}
		if c.ended {
			return
		}
		slot := bits.TrailingZeros32(c.pending)
		c.pending &^= 1 << slot
		c.busy = true
		c.mu.Unlock()
		c.Execute(slot)
		c.mu.Lock()
		c.busy = false
		c.change.Broadcast()
	}
}
